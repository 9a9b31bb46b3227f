"""Processes, locks, temporary folders and files: the base of every process of this package.

How it is started and ends, with others and within seconds; forks; locks; temporary folders; files that appear whole;
what it imports, and how much memory it may use.

Standard library only, and below everything else in the package. Linux by design: if there is no ``/proc`` and no
``prctl``, what needs them does nothing.
"""
