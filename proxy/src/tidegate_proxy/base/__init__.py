"""What every other package may use.

faults          reports what broke in Tidegate itself
labels          short labels, and few of them
outcome         an answer, or why there is none
refusal         why Tidegate refused a request, in one word
reserved_names  names that are not for clients
watchdog        says who holds the event loop
"""
