"""What `make dist` does: builds every distribution, looks into what was built, and tries it where nothing else is.

members    the distributions of this repository, and what they share
archives   what must be in a wheel and in a source distribution
clean      a clean environment with the wheels in it, and nothing of this repository
assets     the chart, pages, notes, bill of materials and checksums that go with the archives
newcomer   the program that is run there: all plugins, a simulation, a model of one's own behind the real Triton
"""
