"""The live page: what a Tidegate does, in a browser, as it happens; and why. Served beside the metrics.

routes        what is asked over HTTP: BEGIN HERE
  document      the page in one file: page.html, page.css and the scripts tables.js, trial.js (shadow and canary),
                drawing.js, story.js, page.js
  source        what the page is told of where it looks
  viewers       those who look; nothing is kept while nobody does
live          what it shows of a Tidegate that runs
recent        what happened since somebody looked last; moments: all of it, for a minute, one by one
figures       rolling figures of models, workers, shapes; decisions: what was decided; snapshot: these, as JSON has them
trials        what shadow mode or a canary says, or what passes as that is better
telling       the story of one request, a little at a time
  facts         what is known of it; why: the same in sentences
what_if       how the latest requests would have fared otherwise: gathering makes a question of them, and
  simulating    a process of its own answers it
recording     what it shows of a recorded run: `tidegate page`; serving: until somebody has seen enough
  log_file      the recording, looked into at any instant; overview: all of it, in pieces
"""
