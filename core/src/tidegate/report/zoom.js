// All Gantt charts of a page show one stretch of time: wheel or buttons zoom, dragging and arrows move, `all` shows all.
(() => {
  const charts = [...document.querySelectorAll(".gantt")]
  const until = Math.max(...charts.map((chart) => +chart.dataset.until))
  let from = 0, to = until

  const tick = (at, y, says, kind = "") =>
    `<text x="${at}%" y="${y}" text-anchor="middle"${kind}>${says}</text>`

  function show(start, end) {
    const wide = Math.min(until, Math.max(20, end - start))
    from = Math.min(Math.max(0, start), until - wide)
    to = from + wide
    const rough = wide / 1000 / 5, power = 10 ** Math.floor(Math.log10(rough))
    const step = [1, 2, 2.5, 5, 10].find((each) => each * power >= rough * 0.999) * power
    const digits = Math.max(0, Math.ceil(-Math.log10(step)) + (step / 10 ** Math.floor(Math.log10(step)) === 2.5 ? 1 : 0))
    let ticks = ""
    for (let each = Math.ceil(from / 1000 / step); each * step <= to / 1000; each++) {
      ticks += tick((100 * (each * step * 1000 - from)) / wide, 14, (each * step).toFixed(digits))
    }
    ticks += tick(50, 32, "ms of the measured window", ' class="unit"')
    for (const chart of charts) {
      const svg = chart.querySelector(".zoomed")
      svg.setAttribute("viewBox", `${from} 0 ${wide} ${svg.getAttribute("height")}`)
      chart.querySelector(".ticks").innerHTML = ticks
    }
  }

  function zoom(factor, at = 0.5) {
    const wide = to - from, middle = from + at * wide
    show(middle - at * wide * factor, middle + (1 - at) * wide * factor)
  }
  const move = (share) => show(from + share * (to - from), to + share * (to - from))
  const ways = {
    in: () => zoom(0.5), out: () => zoom(2), left: () => move(-0.25), right: () => move(0.25), all: () => show(0, until),
  }
  const keys = { "+": "in", "-": "out", ArrowLeft: "left", ArrowRight: "right", 0: "all" }

  for (const chart of charts) {
    const svg = chart.querySelector(".zoomed")
    for (const button of chart.querySelectorAll("button")) button.onclick = ways[button.dataset.go]
    svg.onkeydown = (event) => {
      if (keys[event.key]) { event.preventDefault(); ways[keys[event.key]]() }
    }
    svg.addEventListener("wheel", (event) => {
      if (!event.ctrlKey && document.activeElement !== svg) return // else the page could not be scrolled past it
      event.preventDefault()
      const box = svg.getBoundingClientRect()
      zoom(event.deltaY > 0 ? 1.25 : 0.8, (event.clientX - box.left) / box.width)
    }, { passive: false })
    svg.ondblclick = ways.in
    let held = null
    svg.onpointerdown = (event) => { held = event.clientX; svg.setPointerCapture(event.pointerId); svg.focus() }
    svg.onpointermove = (event) => {
      if (held === null) return
      move((held - event.clientX) / svg.getBoundingClientRect().width)
      held = event.clientX
    }
    svg.onpointerup = svg.onpointercancel = () => { held = null }
  }
})()
