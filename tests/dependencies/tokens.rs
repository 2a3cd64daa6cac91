//! Tokens of a Rust source: identifiers, `::`, and single characters. Comments and literals are skipped.

/// The tokens of `text`, as slices of it.
pub(crate) fn tokens(text: &str) -> Vec<&str> {
    let mut found = Vec::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let length = if let Some(skipped) = skipped(rest) {
            rest = &rest[skipped..];
            continue;
        } else if first.is_alphanumeric() || first == '_' {
            rest.find(|next: char| !next.is_alphanumeric() && next != '_').unwrap_or(rest.len())
        } else if rest.starts_with("::") {
            2
        } else {
            first.len_utf8()
        };
        let (token, after) = rest.split_at(length);
        found.push(token);
        rest = after;
    }
    found
}

/// Bytes of the space, comment or literal that `text` starts with; `None` if it starts with a token.
fn skipped(text: &str) -> Option<usize> {
    let space = text.len() - text.trim_start().len();
    if space > 0 {
        return Some(space);
    }
    if text.starts_with("//") {
        return Some(text.find('\n').unwrap_or(text.len()));
    }
    if text.starts_with("/*") {
        return Some(block_comment(text));
    }
    let literal = text.trim_start_matches(['b', 'c']);
    let prefix = text.len() - literal.len();
    if literal.starts_with('"') && prefix < 2 {
        return Some(prefix + quoted(literal, '"'));
    }
    let raw = literal.strip_prefix('r').map(|raw| (raw, raw.trim_start_matches('#')));
    if let Some((raw, quote)) = raw.filter(|(_, quote)| quote.starts_with('"') && prefix < 2) {
        let end = format!("\"{}", "#".repeat(raw.len() - quote.len()));
        let start = text.len() - quote.len() + 1;
        return Some(text[start..].find(&end).map_or(text.len(), |found| start + found + end.len()));
    }
    let character = text.strip_prefix('\'')?;
    let is_lifetime = !character.starts_with('\\') && character.chars().nth(1) != Some('\'');
    Some(if is_lifetime { 1 } else { quoted(text, '\'') })
}

/// Bytes of the block comment that `text` starts with. Block comments nest.
fn block_comment(text: &str) -> usize {
    let (mut depth, mut at) = (0, 0);
    while at < text.len() {
        match &text.as_bytes()[at..] {
            [b'/', b'*', ..] => (depth, at) = (depth + 1, at + 2),
            [b'*', b'/', ..] => (depth, at) = (depth - 1, at + 2),
            _ => at += 1,
        }
        if depth == 0 {
            break;
        }
    }
    at
}

/// Bytes of the literal that `text` starts with, up to and including the closing `quote`.
fn quoted(text: &str, quote: char) -> usize {
    let mut is_escaped = false;
    for (at, next) in text.char_indices().skip(1) {
        match next {
            _ if is_escaped => is_escaped = false,
            '\\' => is_escaped = true,
            _ if next == quote => return at + 1,
            _ => {}
        }
    }
    text.len()
}

#[test]
fn skips_comments_and_literals() {
    let text = r##"
        use crate::a; // crate::b
        /* crate::c /* nested */ crate::d */
        let x: &'a str = "crate::e \" crate::f";
        let y = (b"crate::g", 'c', '\'', r#"crate::h "quoted" "#, br"i");
    "##;
    let text = tokens(text).join(" ");
    assert_eq!(text, "use crate :: a ; let x : & a str = ; let y = ( , , , , ) ;");
}
