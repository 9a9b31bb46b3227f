"""The model server in front of other servers: mirroring and shadowing."""
