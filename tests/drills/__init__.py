"""Fault drills: what a run does when its parts are killed, stopped or cut off, and whether it can be taken up again."""
