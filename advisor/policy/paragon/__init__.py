"""Paragon-style placement: what an app does on a type of which it has no runs is inferred from apps that behave alike.

`advisor.policy.paragon.filtering` completes the table of app × type (and of app × neighbour); `rule` is the daemon's
policy: of what is free, the place where the job runs fastest; where nothing is, what comes free first.
"""
