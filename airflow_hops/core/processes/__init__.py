"""Processes, locks, temporary folders and files: the base of every process of this package.

It covers starting and ending processes, forks, locks, temporary folders, and atomic writes.

Standard library only, and below everything else in the package. Designed for Linux: functions that need ``/proc`` or
``prctl`` are no-ops without it.
"""
