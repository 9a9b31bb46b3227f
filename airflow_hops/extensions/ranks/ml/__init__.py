"""Ranks on other machines: agents, connections, and the balance between fast and slow ranks."""
