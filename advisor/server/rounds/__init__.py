"""Rounds: pending jobs are looked at again, and those that would end sooner elsewhere are moved.

A thread of the collector process, never the one that answers the hook. What may be done is said by the setting
`levers`; all that was done, and why, is in the log (`moves`).
"""
