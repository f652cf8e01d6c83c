"""The common parts of all topics: declarations of numbers, findings, and the interface of a topic."""
