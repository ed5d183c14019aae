"""Tuning by simulation (`policy: auto`): replaces the policy by one that answers more of the latest traffic on time.

tuner              decides what to compare and when to replace the policy, within a budget of CPU time: BEGIN HERE
candidates         the policies and options that are compared
traffic_window     the latest requests of an engine with their outcomes; when two loads are alike
policy_comparison  simulates the same requests under each candidate: the long part
simulated_tuning   runs the tuner in virtual time; the proxy has its own driver with a child process
"""
