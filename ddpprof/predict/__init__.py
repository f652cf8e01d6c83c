"""The replay: how long would the step take with other buckets, another network, more ranks?"""
