"""The live side of `policy: auto`: gives recent traffic to a child process, and replaces the policy by its verdicts.

policy_tuning    starts and stops with the policy that is configured; its report and metrics: BEGIN HERE
live_tuning      drives the tuner on the monotonic clock (imported only where the policy is tuned)
tuning_process   the child process: simulates within a CPU budget
"""
