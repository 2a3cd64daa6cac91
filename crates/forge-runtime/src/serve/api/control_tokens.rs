//! Encodes a conversation so that text in messages that looks like a special token stays text.
//!
//! A chat template writes messages and special tokens into one text, and the tokenizer recognizes special
//! tokens anywhere in it. To find the message contents, the conversation is rendered a second time with a
//! marker in place of each content. If both texts agree except at the markers, their positions are the
//! contents. A special token's text that reaches into a content is split after its first character, and the
//! parts are encoded separately. A conversation without such text is encoded as a whole.

use crate::serve::api::completion_body::random_id;
use crate::text::chat_template::{Conversation, Message, Template};
use crate::text::tokenizer::Tokenizer;
use forge_device::error::Error;
use serde_json::Value;
use std::ops::Range;

/// The token ids of a conversation as `template` renders it.
pub(crate) fn encode(
    text: &Tokenizer,
    template: &Template,
    conversation: &Conversation<'_>,
) -> Result<Vec<u32>, Error> {
    let rendered = template.render(conversation)?;
    let controls = text.control_texts()?;
    let mut contents = conversation.messages.iter().filter_map(|message| message.content.as_str());
    let is_suspect = contents.any(|content| controls.iter().any(|control| content.contains(control)));
    let ranges = match is_suspect {
        true => content_ranges(template, conversation, &rendered).unwrap_or_default(),
        false => Vec::new(),
    };
    let mut tokens = Vec::new();
    let mut start = 0;
    for cut in cuts(&rendered, &ranges, &controls).into_iter().chain([rendered.len()]) {
        tokens.extend(text.encode(&rendered[start..cut], false)?);
        start = cut;
    }
    Ok(tokens)
}

/// The ranges of message contents in the rendered text; `None` if the template changes them.
fn content_ranges(
    template: &Template,
    conversation: &Conversation<'_>,
    rendered: &str,
) -> Option<Vec<Range<usize>>> {
    let unique = random_id("content");
    let marker = |index: usize| format!("{unique}x{index}x");
    let marked: Vec<Message> = conversation
        .messages
        .iter()
        .enumerate()
        .map(|(index, message)| match &message.content {
            Value::String(content) if !content.trim().is_empty() => {
                Message { content: Value::String(marker(index)), ..message.clone() }
            }
            _ => message.clone(),
        })
        .collect();
    let marked = template.render(&Conversation { messages: &marked, ..*conversation }).ok()?;
    let mut pieces = marked.split(unique.as_str());
    let mut at = 0;
    let mut ranges = Vec::new();
    let follow = |literal: &str, at: &mut usize| {
        let follows = rendered.get(*at..).is_some_and(|rest| rest.starts_with(literal));
        *at += literal.len();
        follows.then_some(())
    };
    follow(pieces.next()?, &mut at)?;
    for piece in pieces {
        let (index, literal) = piece.strip_prefix('x')?.split_once('x')?;
        let content = conversation.messages.get(index.parse::<usize>().ok()?)?.content.as_str()?;
        let forms = [content, content.trim(), content.trim_end(), content.trim_start()];
        let form = forms.into_iter().find(|form| {
            let rest = rendered[at..].strip_prefix(form);
            rest.is_some_and(|rest| rest.starts_with(literal))
        })?;
        ranges.push(at..at + form.len());
        at += form.len();
        follow(literal, &mut at)?;
    }
    (at == rendered.len()).then_some(ranges)
}

/// Where to split a text so that no special token reaching into a content is recognized.
fn cuts(rendered: &str, contents: &[Range<usize>], controls: &[String]) -> Vec<usize> {
    let mut cuts = Vec::new();
    for control in controls.iter().filter(|_| !contents.is_empty()) {
        let Some(first) = control.chars().next().map(char::len_utf8) else { continue };
        let mut from = 0;
        while let Some(found) = rendered[from..].find(control.as_str()) {
            let start = from + found;
            let end = start + control.len();
            if contents.iter().any(|content| start < content.end && content.start < end)
                && first < control.len()
            {
                cuts.push(start + first);
            }
            from = start + first;
        }
    }
    cuts.sort_unstable();
    cuts.dedup();
    cuts
}
