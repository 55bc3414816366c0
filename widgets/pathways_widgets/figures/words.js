// Words of the field in plain words (terms.py): under the pointer in the sentences around a figure and in its legends, and
// in a list for who has none.

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

// The words of the field around a figure with what they mean, as a list that is made when it is opened.
const glossary = (element) => {
  const details = document.createElement("details"), word = document.createElement("summary"), list = document.createElement("dl")
  word.textContent = "words"
  word.title = "What the words around this figure mean"
  word.style.cursor = "pointer"
  list.style.cssText = "margin: 0; max-height: 24em; overflow: auto"
  list.tabIndex = 0
  details.className = "pathways-words"
  details.append(word, list)
  details.addEventListener("toggle", () => {
    const said = everyOne(element, "abbr").map(({textContent, title}) => [textContent, title])
    const shown = everyOne(element, ".pathways-legend > *").map(({lastChild}) => [lastChild?.textContent.trim() ?? "", meaningOf(lastChild?.textContent.trim() ?? "")])
    // Each meaning once, with the word that stands first.
    const words = new Map([...said, ...shown].filter(([, meaning]) => meaning).reverse().map(([text, meaning]) => [meaning, text]))
    // A notebook has rules of its own for such lists.
    list.replaceChildren(...[...words].reverse().flatMap(([meaning, text]) => [["dt", text, "font-weight: bold"], ["dd", meaning, "margin: 0 0 2px 1.5em"]].map(([tag, textContent, style]) =>
      Object.assign(document.createElement(tag), {textContent, style: `float: none; width: auto; ${style}`}))))
    if (!words.size) list.textContent = "There are no words of the field here."
  })
  return details
}
