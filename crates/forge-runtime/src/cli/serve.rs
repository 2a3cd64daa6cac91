//! `serve`: an HTTP server with the OpenAI API.

use crate::cli::command::{Command, Context};
use crate::cli::output::{Outcome, remark};
use crate::error::Error;
use crate::serve::{Options, Server};
use clap::Args;

/// The default of `--slots`.
const SLOTS: u32 = 4;

/// Serve the model over HTTP with the OpenAI API
#[derive(Debug, Args)]
#[command(after_help = "\
OpenAI clients work with the base URL http://127.0.0.1:8080/v1.

  curl http://127.0.0.1:8080/v1/chat/completions -H 'Content-Type: application/json' \\
       -d '{\"messages\": [{\"role\": \"user\", \"content\": \"Hello\"}]}'

Each of the --slots holds --ctx-size tokens, prompt and output together. A longer prompt is rejected, never truncated.
Requests beyond --slots wait; beyond --queue they get status 429. Ctrl-C finishes running requests, then exits; a second
Ctrl-C exits at once.")]
pub struct Serve {
    /// Address to listen on; a public address needs --api-key or --no-api-key
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1")]
    pub(crate) host: String,
    /// Port to listen on; 0 takes a free one
    #[arg(long, value_name = "PORT", default_value_t = 8080)]
    pub(crate) port: u16,
    /// Accepted bearer token (repeatable) [default: MODEL_API_KEY]
    ///
    /// Clients send `Authorization: Bearer KEY`. Unlike --api-key, the environment variable MODEL_API_KEY is not visible in the
    /// process list.
    #[arg(long, value_name = "KEY")]
    pub(crate) api_key: Vec<String>,
    /// Allow requests without an API key on a public address
    #[arg(long)]
    pub(crate) no_api_key: bool,
    /// Maximum number of requests that wait for a slot
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(..=65536))]
    pub(crate) queue: u32,
    /// Browser origin that may send requests, such as https://example.org, or * for all (repeatable)
    // Help text: the URL is shown in a terminal.
    #[allow(rustdoc::bare_urls)]
    #[arg(long, value_name = "ORIGIN")]
    pub(crate) allow_origin: Vec<String>,
    /// Additional model name to accept (repeatable)
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
            return Err(Error::usage("empty API key: check --api-key and MODEL_API_KEY"));
        }
        Ok(Options {
            host: self.host.clone(),
            port: self.port,
            api_keys,
            insecure: self.no_api_key,
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
