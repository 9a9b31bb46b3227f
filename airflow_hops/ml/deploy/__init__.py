"""Deploys versions, and applies decisions of users about which version serves."""
