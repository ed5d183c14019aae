"""Servers side by side under the same load: `tidegate compare`.

targets      the servers: named on the command line, or clusters emulated for the comparison
runs         who is asked when: interleaved rounds, the same requests to each within a round
intervals    mean, difference and ratio over the rounds, with their confidence intervals
findings     the figures that are compared, and the verdict in a line
settings     how each server batches, by its own word
document     the JSON;  table: for the terminal;  page: one HTML file that needs no network
"""
