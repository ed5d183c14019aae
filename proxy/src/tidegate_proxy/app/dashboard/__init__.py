"""Dashboard: shows in a browser what Tidegate does, and why. Served beside the metrics.

routes        the HTTP routes: BEGIN HERE
              the page in one file: page.html, page.css and the scripts tables.js, rollout.js (shadow and canary),
                charts.js (curves over time, with uplot/), drawing.js (lanes of workers), timeline.js, page.js
  viewers       the viewers; nothing is collected while there are none
  live          shows a running Tidegate, shadow mode, a canary, and models that are bypassed because that is better
tick_buffer   what happened since the last tick; event_buffer: every event of the last minute
figures       rolling figures of models, workers, shapes; decisions: recent decisions; snapshot: all of these as JSON
timeline_builder     builds the timeline of one request, a little at a time
  request_facts         the facts about it; latency_explanation: the same in sentences
what_if       simulates the latest requests with something changed:
  what_if_process    a process of its own simulates
recording     shows a recorded run: `tidegate view`; serving: serves it until interrupted
  log_file      random access to the event log
history       curves over time: the last hour of a running Tidegate, or all of a recorded run
"""
