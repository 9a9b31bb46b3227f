"""Data set sharing on the ML side: publishing, and the daemon, which needs libtorrent of a named environment."""
