//! A program with a language model: generates a story, then answers a question about it.

use fable::{Conversation, Event, Error, Message, GenerationParams, LoadOptions};
use std::io::Write;
use std::ops::ControlFlow;

fn main() -> Result<(), Error> {
    let mut session = fable::open(&LoadOptions::default())?;
    let mut messages = vec![Message::user("Tell me a story about a goat and a bell")];

    // In one call: `chat` returns the complete story. `GenerationParams::default()` is greedy.
    let story = session.chat(&messages, GenerationParams::default())?;
    println!("{story}\n");

    // Streamed: the callback gets each token, and can stop the generation.
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

    // The story is not processed again: its tokens are in the KV cache.
    println!("\n\n{} ids in the conversation, {} of them read for this answer", prompt.len(), written.prefilled_tokens);
    Ok(())
}
