"""Reads from remote stores: requests, their pool, their parts."""
