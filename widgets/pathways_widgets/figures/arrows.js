// Arrows of transfers: those of the boxes that are selected, or of all in sight those that take longest and those of the box
// under the pointer; more could not be told apart. Their table has them in any order.

const fewArrows = (doc) => {
  const [few, table, boxes, range] = ["timeline_arrows_few", "timeline_arrows", "timeline_boxes", "timeline_x"].map((name) => doc.get_model_by_name(name))
  if (!few) return
  const choose = () => {
    const {data} = table, rows = Array.from(data.takes ?? [], (_, i) => i)
    const of = (indices) => { const some = new Set(indices); return rows.filter((i) => ["box", "maker_box", "reader_box"].some((end) => some.has(data[end][i]))) }
    const inSight = rows.filter((i) => data.x1[i] >= range.start && data.x0[i] <= range.end).sort((a, b) => data.takes[b] - data.takes[a])
    const {selected, inspected} = boxes
    const shown = new Set(selected.indices.length ? of(selected.indices) : [...inSight.slice(0, few.tags[0]), ...of(inspected.indices)])
    const booleans = rows.map((i) => shown.has(i))
    if (booleans.join() !== Array.from(few.booleans ?? []).join()) few.booleans = booleans
  }
  for (const property of [table.properties.data, boxes.selected.properties.indices]) property.change.connect(choose)
  range.change.connect(choose)
  boxes.inspect.connect(choose)  // the pointer is over another box, or over none
  choose()
}
