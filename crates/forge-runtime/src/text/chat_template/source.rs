//! Rewrites a template's source before it is compiled, where minijinja has no other hook.

/// The filter that [`prepare`] applies to the iterable of a loop.
pub(crate) const ITERATED: &str = "__iter__";

/// Rewrites blocks that Python's Jinja handles differently from minijinja:
///
/// - `{% generation %}` and `{% endgeneration %}` mark assistant tokens for training, and render as nothing.
/// - `{% for x in y %}` becomes `{% for x in (y)|__iter__ %}`.
pub(crate) fn prepare(source: &str) -> String {
    let mut text = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(start) = rest.find('{') {
        let (before, tag) = rest.split_at(start);
        text.push_str(before);
        let length = match tag.get(..2) {
            Some("{#") => tag.find("#}").map(|end| end + 2),
            Some("{{") => block_end(tag, "}}"),
            Some("{%") => block_end(tag, "%}"),
            _ => Some(1),
        };
        let Some(length) = length else {
            // An unfinished block: minijinja reports it.
            rest = tag;
            break;
        };
        let (block, after) = tag.split_at(length);
        rest = after;
        if !block.starts_with("{%") {
            text.push_str(block);
            continue;
        }
        let inside = block[2..length - 2].trim_start_matches(['-', '+']);
        match inside.split_whitespace().next().map(|word| word.trim_end_matches(['-', '+'])) {
            Some("raw") => {
                let end = raw_end(rest);
                text.push_str(block);
                text.push_str(&rest[..end]);
                rest = &rest[end..];
            }
            // A statement without effect keeps the whitespace control of the tag.
            Some(word @ ("generation" | "endgeneration")) => {
                text.push_str(&block.replacen(word, "set generation = 0", 1));
            }
            Some("for") => text.push_str(&with_iterated(block).unwrap_or_else(|| block.to_owned())),
            _ => text.push_str(block),
        }
    }
    text.push_str(rest);
    text
}

/// The length of a block. The end marker is ignored inside strings.
fn block_end(block: &str, end: &str) -> Option<usize> {
    outside_strings(block).find(|&(at, _)| at >= 2 && block[at..].starts_with(end)).map(|(at, _)| at + 2)
}

/// The offset where a `{% raw %}` block ends.
fn raw_end(rest: &str) -> usize {
    let mut blocks = rest.match_indices("{%");
    let is_end = |block: &str| block.trim_start_matches(['-', '+']).trim_start().starts_with("endraw");
    blocks.find(|&(at, _)| is_end(&rest[at + 2..])).map_or(rest.len(), |(at, _)| at)
}

/// The characters of a text outside string literals, with their offsets.
fn outside_strings(text: &str) -> impl Iterator<Item = (usize, char)> {
    let (mut quote, mut is_escaped) = (None, false);
    text.char_indices().filter(move |&(_, char)| {
        let Some(open) = quote else {
            quote = matches!(char, '\'' | '"').then_some(char);
            return quote.is_none();
        };
        if !is_escaped && char == open {
            quote = None;
        }
        is_escaped = !is_escaped && char == '\\';
        false
    })
}

/// `{% for a in b if c %}` as `{% for a in (b)|__iter__ if c %}`.
fn with_iterated(block: &str) -> Option<String> {
    let words = outer_words(block);
    let (start, _) = *words.iter().find(|(_, word)| *word == "in")?;
    let start = start + "in".len();
    let clause = words.iter().find(|&&(at, word)| at >= start && matches!(word, "if" | "recursive"));
    let end = match clause {
        Some(&(at, _)) => at,
        None => block[..block.len() - 2].trim_end_matches(['-', '+']).len(),
    };
    let iterated = block[start..end].trim();
    let (before, after) = (&block[..start], &block[end..]);
    (!iterated.is_empty()).then(|| format!("{before} ({iterated})|{ITERATED} {after}"))
}

/// The words of a block outside strings and brackets, with their offsets.
fn outer_words(block: &str) -> Vec<(usize, &str)> {
    let (mut words, mut depth, mut previous) = (Vec::<(usize, usize)>::new(), 0, None);
    for (at, char) in outside_strings(block).filter(|&(at, _)| at >= 2) {
        match char {
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' => depth -= 1,
            _ if depth == 0 && (char.is_alphanumeric() || char == '_') => match words.last_mut() {
                Some((_, end)) if *end == at && previous == Some(at) => *end = at + char.len_utf8(),
                _ => words.push((at, at + char.len_utf8())),
            },
            _ => {}
        }
        previous = Some(at + char.len_utf8());
    }
    words.into_iter().map(|(start, end)| (start, &block[start..end])).collect()
}

#[cfg(test)]
mod tests {
    use super::prepare;

    #[test]
    fn loops_iterate_through_a_filter() {
        for (source, expected) in [
            ("{% for x in y %}", "{% for x in (y)|__iter__ %}"),
            ("a{%- for x, z in y.items() -%}b", "a{%- for x, z in (y.items())|__iter__ -%}b"),
            ("{%for x in y if x.in%}", "{%for x in (y)|__iter__ if x.in%}"),
            ("{% for x in y recursive %}", "{% for x in (y)|__iter__ recursive %}"),
            ("{% for x in (a if b else c) if x %}", "{% for x in ((a if b else c))|__iter__ if x %}"),
            ("{% for x in ' if %}' ~ \"\\\" if \" %}", "{% for x in (' if %}' ~ \"\\\" if \")|__iter__ %}"),
            ("{% for x in y['if'] %}", "{% for x in (y['if'])|__iter__ %}"),
            ("{% for info in inside %}", "{% for info in (inside)|__iter__ %}"),
        ] {
            assert_eq!(prepare(source), expected);
        }
    }

    #[test]
    fn comments_raw_blocks_and_strings_are_preserved() {
        for source in [
            "{# {% for x in y %} #}",
            "{% raw %}{% for x in y %}{% endraw %}",
            "{%- raw -%}{{ '{% generation %}' }}{%- endraw -%}",
            "{{ '{% for x in y %}' }}",
            "{ {% if x in y %}{ caf\u{e9} }",
            "{% for x in y",
        ] {
            assert_eq!(prepare(source), source);
        }
        assert_eq!(
            prepare("{%- generation -%}{% endgeneration %}"),
            "{%- set generation = 0 -%}{% set generation = 0 %}"
        );
    }
}
