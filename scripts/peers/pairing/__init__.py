# SPDX-License-Identifier: MIT
"""Shared by the scripts of all peers: libattn, cases, the statistics and oracle of the harness, rounds, tables and files."""
