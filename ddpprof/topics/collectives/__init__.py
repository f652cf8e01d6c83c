"""Collectives: matching of collectives between ranks, and their bandwidth."""
