"""Comparison of servers under the same load: `tidegate compare`.

targets      servers: named on the command line, or clusters emulated for the comparison
runs         settings of each server; order of the runs: interleaved rounds, the same requests to each within a round
intervals    mean, difference and ratio over the rounds, with their confidence intervals
findings     the figures that are compared, and the verdict in a line
document     the JSON;  table: for the terminal;  page: one HTML file that needs no network
"""
