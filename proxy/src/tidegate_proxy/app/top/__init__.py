"""`tidegate top`: a running Tidegate, watched from a terminal by its metrics page.

page       what the page said at an instant; reading: how it is asked for
figures    what happened between two instants: rates, shares, percentiles
tables     the same for people
"""
