// Words of the field in plain words (terms.py), on hover: in the sentences around a figure, and in its legends.

// Writes a text with each word of the field marked where it stands first. Texts hold names that users chose: they are never
// read as HTML.
const explain = (place, text) => {
  if (place.pathwaysText === text) return  // what the pointer is on stays
  place.pathwaysText = text
  const met = new Set(), parts = text.split(new RegExp(`\\b(${Object.keys(IN_TEXT).join("|")})\\b`))
  place.replaceChildren(...parts.map((part) => {
    if (!Object.hasOwn(IN_TEXT, part) || met.has(part)) return part
    met.add(part)
    const word = document.createElement("abbr")
    Object.assign(word, {textContent: part, title: IN_TEXT[part]})
    word.style.cssText = "text-decoration: underline dotted; text-underline-offset: 2px; cursor: help"
    return word
  }))
}

// What an entry of a legend means; empty if its words are plain.
const meaningOf = (text) => KINDS_IN_WORDS[text] ?? Object.entries(IN_TEXT).find(([word]) => text.includes(word))?.[1] ?? ""
