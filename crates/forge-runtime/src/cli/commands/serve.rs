//! `serve`: an HTTP server with the OpenAI API.

use crate::cli::arguments::Serve;
use crate::cli::command::{Command, Context};
use crate::cli::output::{Outcome, log_info};
use crate::serve::{Server, ServerOptions};
use forge_device::error::Error;

/// The default of `--slots`.
const SLOTS: u32 = 4;

impl Serve {
    fn options(&self) -> Result<ServerOptions, Error> {
        let mut api_keys = self.api_key.clone();
        if api_keys.is_empty() {
            api_keys.extend(std::env::var("MODEL_API_KEY"));
        }
        if api_keys.iter().any(|key| key.trim().is_empty()) {
            return Err(Error::usage("empty API key: check --api-key and MODEL_API_KEY"));
        }
        Ok(ServerOptions {
            host: self.host.clone(),
            port: self.port,
            api_keys,
            allow_no_api_key: self.no_api_key,
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
        let mut setup = common.load_options();
        setup.slots = common.slots.unwrap_or(SLOTS);
        Server::check_slots(program.info, setup.slots)?;
        let (text, template) = (setup.tokenizer(program), setup.template(program)?);
        let sampling = setup.sampling(program)?;
        let mut engine = setup.engine(program, None)?;
        text.wait_ready()?;
        log_info(&format!(
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
