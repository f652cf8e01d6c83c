"""The replay: how long would a step take with other buckets, another network, or more ranks?"""
