"""Runs that are stopped, and disks that fill up, at many moments: slow, and run by hand in full."""
