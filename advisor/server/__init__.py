"""The daemon that answers the hook: hot path, snapshot keeper, log after the reply, status."""
