//! `serve`: the model for many clients at once.

use crate::cli::command::{Command, Context};
use crate::cli::output::{Outcome, remark};
use crate::error::Error;
use crate::serve::{Options, Server};
use clap::Args;

/// Texts written at once, if nobody says how many.
const SLOTS: u32 = 4;

/// What `serve` is told.
#[derive(Debug, Args)]
#[command(after_help = "\
The server speaks as OpenAI's does: any of its clients, with http://127.0.0.1:8080/v1 as the base URL.

  curl http://127.0.0.1:8080/v1/chat/completions -H 'Content-Type: application/json' \\
       -d '{\"messages\": [{\"role\": \"user\", \"content\": \"Hello\"}]}'

Each of the --slots has room for --ctx-size tokens, prompt and answer together. A prompt that is longer is refused, never
cut. More requests than slots wait; more than --queue waiting are refused with status 429. Ctrl-C lets answers that are
under way come to their end, a second one does not.")]
pub struct Serve {
    /// The address to listen at; one that others can reach wants --api-key or --no-api-key
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1")]
    pub(crate) host: String,
    /// The port to listen at; 0 takes any that is free
    #[arg(long, value_name = "PORT", default_value_t = 8080)]
    pub(crate) port: u16,
    /// A key that requests have to show as `Authorization: Bearer KEY` (may be given several times) [default: what the
    /// environment has as MODEL_API_KEY, which others cannot see in a list of processes]
    #[arg(long, value_name = "KEY")]
    pub(crate) api_key: Vec<String>,
    /// Let others reach the server without a key
    #[arg(long)]
    pub(crate) insecure: bool,
    /// Requests that may wait for a slot
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(..=65536))]
    pub(crate) queue: u32,
    /// An origin whose pages may ask, such as https://example.org, or * for all (may be given several times)
    // What is written here is shown in a terminal, too.
    #[allow(rustdoc::bare_urls)]
    #[arg(long, value_name = "ORIGIN")]
    pub(crate) allow_origin: Vec<String>,
    /// Another name that the model answers to (may be given several times)
    #[arg(long, value_name = "NAME")]
    pub(crate) alias: Vec<String>,
}

impl Serve {
    fn options(&self) -> Result<Options, Error> {
        let mut api_keys = self.api_key.clone();
        if api_keys.is_empty() {
            api_keys.extend(std::env::var("MODEL_API_KEY"));
        }
        if api_keys.iter().any(|key| key.trim().is_empty()) {
            return Err(Error::usage("a key is not empty: --api-key, or MODEL_API_KEY, has none in it"));
        }
        Ok(Options {
            host: self.host.clone(),
            port: self.port,
            api_keys,
            insecure: self.insecure,
            queue: self.queue,
            origins: self.allow_origin.clone(),
            aliases: self.alias.clone(),
        })
    }
}

impl Command for Serve {
    const NAME: &'static str = "serve";

    fn run(&self, context: &Context<'_>) -> Outcome {
        let (program, common, command) = (context.program, context.common, self);
        let server = Server::listen(command.options()?)?;
        let mut setup = common.setup();
        setup.slots = common.slots.unwrap_or(SLOTS);
        Server::check_slots(program.info, setup.slots)?;
        let (text, template) = (setup.text(program), setup.template(program)?);
        let sampling = setup.sampling(program)?;
        let mut engine = setup.engine(program, None)?;
        text.ready()?;
        remark(&format!(
            "{} at http://{}/v1 · {} slots of {} tokens · {}",
            program.info.name,
            server.address(),
            setup.slots,
            engine.context(),
            engine.device().describe(),
        ));
        server.run(engine, setup.slots, text, setup.path(program, "tokenizer.json"), template, sampling)?;
        Ok(true)
    }
}
