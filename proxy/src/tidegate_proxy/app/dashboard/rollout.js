// The gain of a policy: simulated (shadow mode), or measured for a fraction of the time (canary).
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

function showRollout(rollout) {
  const isShadow = rollout?.mode === "shadow"
  if (document.body.classList.contains("unscheduled") !== isShadow) {
    document.body.classList.toggle("unscheduled", isShadow)
    if (past) showHistory()
  }
  by("rollout").hidden = !rollout
  if (!rollout) return
  const would = isShadow ? "would change" : "changes"
  by("rollout-title").textContent = isShadow ? "Shadow" : `Canary: ${digits(100 * rollout.fraction, rollout.fraction * 100 % 1 ? 1 : 0)} %`
  by("rollout-note").textContent = [
    isShadow
      ? `All requests bypass. Shadow mode simulates what ${rollout.policy} would do with them. Figures of scheduled requests are not shown: there are none.`
      : `For this fraction of the time ${rollout.policy} schedules; otherwise all requests bypass. The other figures of this page count scheduled requests.`,
    rollout.rows.length === 0 && rollout.note ? ""
      : rollout.rows.length === 0 ? (isShadow ? "Nothing is simulated yet: that takes some ten seconds." : "Nothing is compared yet: that takes some fifteen seconds.")
      : rollout.window_s === null ? "Of the latest ten minutes, or since the fraction or the policy changed." : `Of the latest ${digits(rollout.window_s, 0)} s.`,
    rollout.note, rollout.more_rows ? `${rollout.more_rows} more models are not shown.` : "",
  ].filter(Boolean).join(" ")
  const most = Math.max(0.01, ...rollout.rows.flatMap((row) => (row.gain ?? []).map(Math.abs)))
  by("rollout-rows").replaceChildren(...rollout.rows.map((row) => {
    const box = element("article", "rollout")
    box.append(heading(row.model || "All with an SLO"), ...row.sides.map(sideOf))
    if (row.gain) {
      const said = `${would} attainment by ${points(row.gain[0])} to ${points(row.gain[1])} points`
      box.append(element("b", gainClass(row.gain), `${rollout.policy} ${said}`), gainOf(row.gain, most))
    } else box.append(element("p", "note", `No figure for what ${rollout.policy} ${would}: ${row.why}.`))
    return box
  }))
  if (isShadow) {
    const all = rollout.rows.find((row) => row.model === "")
    by("verdict").textContent = all ? `${percent(all.sides[0].on_time)} of the bypassed requests are on time` : "All requests bypass"
  }
}
