"""What `scripts/cluster` is made of: the mini-cluster in Docker, and the same one in a folder of this host.

Imported by that script alone; Python's standard library is all it needs, because it runs before anything is installed.
"""
