"""Runs one job as several processes, which find each other and all end if one of them fails."""
