// What a policy would do (shadow mode), or does for a share of the time (a canary; where it is better that all passes).
const points = (share) => `${share < 0 ? "−" : "+"}${digits(Math.abs(100 * share), 1)}`
const gainClass = ([low, high]) => (low > 0 ? "on-time" : high < 0 ? "failed" : "")

function sideOf(side) {
  const box = element("div", "answer"), line = element("p"), meter = element("div", "meter"), bar = element("i")
  line.append(element("b", "", side.name), element("span", grade(side.on_time), percent(side.on_time)))
  bar.style.width = `${100 * (side.on_time ?? 0)}%`
  meter.append(bar)
  box.append(line, meter)
  const said = side.requests === null ? [] : [`${digits(side.requests, 0)} requests`]
  if (side.p50_ms !== null) said.push(`p50 ${shown(side.p50_ms)} ms`, `p99 ${shown(side.p99_ms)} ms`)
  if (said.length) box.append(element("p", "note", said.join(", ")))
  return box
}

// An interval about zero, on a scale that all rows share.
function gainOf(gain, most) {
  const [low, high] = gain, drawn = element("div", `gain ${gainClass(gain)}`), bar = element("i"), zero = element("u")
  const at = (value) => 50 + (50 * value) / most
  bar.style.left = `${at(low)}%`
  bar.style.width = `${at(high) - at(low)}%`
  zero.style.left = "50%"
  drawn.append(bar, zero)
  drawn.setAttribute("aria-hidden", "true")
  return drawn
}

function heading(name) {
  const made = element("h3")
  made.append(named(name))
  return made
}

function showTrial(trial) {
  by("trial").hidden = !trial
  if (!trial) return
  const isShadow = trial.mode === "shadow", would = isShadow ? "would change" : "changes"
  by("trial-title").textContent = isShadow ? "Shadow" : `Canary: ${digits(100 * trial.share, trial.share * 100 % 1 ? 1 : 0)} %`
  by("trial-note").textContent = [
    isShadow
      ? `Everything passes as it is. What ${trial.policy} would have done with it is simulated. The other figures of this page are of what is scheduled: nothing.`
      : `For so much of the time ${trial.policy} schedules all that can be; otherwise it passes as it is. The other figures of this page are of what is scheduled.`,
    trial.rows.length === 0 && trial.note ? ""
      : trial.rows.length === 0 ? (isShadow ? "Nothing is simulated yet: that takes some ten seconds." : "Nothing is compared yet: that takes some fifteen seconds.")
      : trial.window_s === null ? "Of the latest ten minutes, or since the share or the policy changed." : `Of the latest ${digits(trial.window_s, 0)} s.`,
    trial.note, trial.more_rows ? `${trial.more_rows} more models are not shown.` : "",
  ].filter(Boolean).join(" ")
  const most = Math.max(0.01, ...trial.rows.flatMap((row) => (row.gain ?? []).map(Math.abs)))
  by("trial-rows").replaceChildren(...trial.rows.map((row) => {
    const box = element("article", "trial")
    box.append(heading(row.model || "All with an SLO"), ...row.sides.map(sideOf))
    if (row.gain) {
      const said = `${would} attainment by ${points(row.gain[0])} to ${points(row.gain[1])} points`
      box.append(element("b", gainClass(row.gain), `${trial.policy} ${said}`), gainOf(row.gain, most))
    } else box.append(element("p", "note", `What ${trial.policy} ${would} is not said: ${row.why}.`))
    return box
  }))
  if (isShadow) {
    const all = trial.rows.find((row) => row.model === "")
    by("verdict").textContent = all ? `${percent(all.sides[0].on_time)} of what passes is on time` : "Everything passes as it is"
  }
}
