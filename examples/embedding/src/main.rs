//! A program with a language model in it: asks for a story, and then about the story.

use fable::{Conversation, Event, Error, Message, GenerationParams, LoadOptions};
use std::io::Write;
use std::ops::ControlFlow;

fn main() -> Result<(), Error> {
    let mut session = fable::open(&LoadOptions::default())?;
    let mut messages = vec![Message::user("Tell me a story about a goat and a bell")];

    // All at once: the story is here when it is whole. GenerationParams::default() takes the likeliest word, always.
    let story = session.chat(&messages, GenerationParams::default())?;
    println!("{story}\n");

    // Word by word: the session is told what happens as it happens, and may be stopped.
    messages.push(Message::assistant(story));
    messages.push(Message::user("What did the goat want?"));
    let prompt = session.prompt(&Conversation::new(&messages))?;
    let written = session.generate(&prompt, GenerationParams::default(), None, &mut |event| {
        if let Event::Token(piece) = event {
            print!("{}", piece.text);
            let _ = std::io::stdout().flush();
        }
        ControlFlow::Continue(())
    })?;

    // The story was not read again: the session remembers what it has said.
    println!("\n\n{} ids in the conversation, {} of them read for this answer", prompt.len(), written.prefilled_tokens);
    Ok(())
}
