//! The endpoints: which paths there are, and what each makes of a body.
//!
//! Reading a body, rendering a conversation, encoding it and compiling a grammar take a while for long ones, so that
//! happens aside; the thread that serves connections never waits for it.

use super::super::template::Message;
use super::access::guard;
use super::answer::Answer;
use super::asked::Asked;
use super::fields::Fields;
use super::refusal::{Refusal, json_response, typed};
use super::responses;
use super::service::Service;
use super::shape::{CompletionShape, Kind};
use super::tools::{Tools, read_arguments};
use axum::Router;
use axum::body::{Body, Bytes, to_bytes};
use axum::extract::{Path, State};
use axum::http::{HeaderValue, Method, StatusCode, Uri, header};
use axum::middleware::from_fn_with_state;
use axum::response::Response;
use axum::routing::{get, post};
use serde_json::{Map, Value, json};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// Bytes that any body may have, and for each position of the context: more than a token has, written in the most
/// roundabout way.
const BODY: usize = 2 << 20;
const BODY_FOR_POSITION: usize = 64;
/// How long a body may take to come.
const BODY_TIME: Duration = Duration::from_secs(30);
/// Ids of a plain completion that says nothing of how many: as OpenAI has it.
const PLAIN_COUNT: usize = 16;

type Shared = State<Arc<Service>>;
type Outcome = Result<Response, Refusal>;
/// What a request for text begins.
type Begun = Result<(Asked, Answer), Refusal>;

/// Every path.
pub(super) fn router(service: Arc<Service>) -> Router {
    Router::new()
        .route("/", get(page))
        .route("/v1/chat/completions", post(chat))
        .route("/v1/completions", post(complete))
        .route("/v1/responses", post(respond))
        .route("/v1/embeddings", post(embeddings))
        .route("/v1/models", get(models))
        .route("/v1/models/{*model}", get(model))
        .route("/tokenize", post(tokenize))
        .route("/detokenize", post(detokenize))
        .route("/health", get(health))
        .route("/ready", get(ready))
        .route("/metrics", get(metrics))
        .fallback(nowhere)
        .method_not_allowed_fallback(wrong_method)
        .layer(from_fn_with_state(service.clone(), guard))
        .with_state(service)
}

async fn nowhere(uri: Uri) -> Refusal {
    Refusal::new(StatusCode::NOT_FOUND, format!("there is nothing at {}", uri.path())).code("unknown_url")
}

async fn wrong_method(method: Method, uri: Uri) -> Refusal {
    let message = format!("{} does not take {method}", uri.path());
    Refusal::new(StatusCode::METHOD_NOT_ALLOWED, message).code("method_not_allowed")
}

/// A page to chat on. It loads nothing from elsewhere, and may not.
async fn page() -> Response {
    const POLICY: &str = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:; \
                          connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";
    let mut response = typed(StatusCode::OK, "text/html; charset=utf-8", include_str!("page.html"));
    response.headers_mut().insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY));
    response
}

async fn health() -> Response {
    json_response(StatusCode::OK, &json!({ "status": "ok" }))
}

async fn ready(State(service): Shared) -> Response {
    let (status, word) = if service.is_ready.load(Relaxed) {
        (StatusCode::OK, "ready")
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, "warming up")
    };
    json_response(status, &json!({ "status": word }))
}

async fn metrics(State(service): Shared) -> Response {
    typed(StatusCode::OK, "text/plain; version=0.0.4", service.metrics.text(service.slots))
}

fn described(service: &Service, name: &str) -> Value {
    json!({
        "id": name,
        "object": "model",
        "created": service.created,
        "owned_by": "forge",
        "context_length": service.context,
        "max_model_len": service.context,
        "vocabulary": service.info.vocabulary,
        "architecture": service.info.architecture,
        "converses": service.template.is_some(),
    })
}

async fn models(State(service): Shared) -> Response {
    let names = std::iter::once(service.info.name).chain(service.aliases.iter().map(String::as_str));
    let data: Vec<Value> = names.map(|name| described(&service, name)).collect();
    json_response(StatusCode::OK, &json!({ "object": "list", "data": data }))
}

async fn model(State(service): Shared, Path(name): Path<String>) -> Outcome {
    match service.answers_to(&name) {
        true => Ok(json_response(StatusCode::OK, &described(&service, &name))),
        false => Err(service.unknown_model(&name)),
    }
}

/// A causal model's states say what comes next, not what a text is about.
async fn embeddings() -> Refusal {
    let message = "this model was made to continue texts, and what it would give for an embedding finds nothing well: \
                   a model that was made for embeddings does";
    Refusal::new(StatusCode::NOT_FOUND, message).code("no_embeddings")
}

async fn chat(State(service): Shared, body: Body) -> Outcome {
    begin(service, body, begin_chat).await
}

async fn respond(State(service): Shared, body: Body) -> Outcome {
    begin(service, body, responses::begin).await
}

async fn complete(State(service): Shared, body: Body) -> Outcome {
    begin(service, body, begin_plain).await
}

/// Answers a request for text.
async fn begin(service: Arc<Service>, body: Body, make: fn(&Service, &mut Fields) -> Begun) -> Outcome {
    let (asked, answer) = aside(service, body, move |service, mut fields| {
        service.check_model(&mut fields)?;
        make(service, &mut fields)
    })
    .await?;
    answer.response(asked.stream).await
}

/// Reads a body, and does something with its fields on another thread.
async fn aside<T: Send + 'static>(
    service: Arc<Service>,
    body: Body,
    work: impl FnOnce(&Service, Fields) -> Result<T, Refusal> + Send + 'static,
) -> Result<T, Refusal> {
    let most = BODY.max(BODY_FOR_POSITION * service.context as usize);
    let bytes = read(body, most).await?;
    let done = tokio::task::spawn_blocking(move || work(&service, Fields::parse(&bytes)?)).await;
    done.unwrap_or_else(|_| {
        Err(Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, "this request made a part of the server fail"))
    })
}

async fn read(body: Body, most: usize) -> Result<Bytes, Refusal> {
    match tokio::time::timeout(BODY_TIME, to_bytes(body, most)).await {
        Ok(Ok(bytes)) => Ok(bytes),
        Ok(Err(_)) => {
            let message = format!("the body did not come whole, or has more than {most} bytes");
            Err(Refusal::new(StatusCode::PAYLOAD_TOO_LARGE, message))
        }
        Err(_) => Err(Refusal::new(StatusCode::REQUEST_TIMEOUT, "the body took too long to come")),
    }
}

fn begin_chat(service: &Service, fields: &mut Fields) -> Begun {
    let messages = messages(fields)?;
    let variables = variables(fields)?;
    for (name, allowed, why) in [
        ("modalities", json!(["text"]), "is [\"text\"]: this model writes text"),
        ("verbosity", json!("medium"), "is not something that this model knows"),
    ] {
        fields.only(name, &allowed, why)?;
    }
    let tools = Tools::new(
        fields.take("tools")?.unwrap_or_default(),
        fields.take("tool_choice")?,
        fields.take("parallel_tool_calls")?.unwrap_or(true),
        service.template.as_ref(),
    )?;
    let mut asked = Asked::take(fields, service, 1, usize::MAX)?;
    if let Some(tools) = &tools {
        asked.offer(tools, service)?;
    }
    let top = fields.count("top_logprobs", 0, 20)?;
    let wants = fields.take::<bool>("logprobs")?.unwrap_or(false);
    if top.is_some() && !wants {
        return Err(Refusal::of("top_logprobs", "`top_logprobs` comes with `logprobs`: true"));
    }
    asked.settings.logprobs = wants.then_some(top.unwrap_or(0));
    std::mem::take(fields).finish()?;
    let described = tools.as_ref().map_or(&[][..], |tools| &tools.described);
    let prompt = service.conversation(&messages, described, &variables)?;
    let answer = begin_texts(service, &asked, vec![prompt], Kind::Chat)?;
    Ok((asked, answer))
}

/// The turns of a conversation, each with text for content.
fn messages(fields: &mut Fields) -> Result<Vec<Message>, Refusal> {
    let mut messages: Vec<Message> = fields.need("messages")?;
    if messages.is_empty() {
        return Err(Refusal::of("messages", "`messages` is empty"));
    }
    for message in &mut messages {
        if let Value::Array(parts) = &message.content {
            let texts: Option<Vec<&str>> = parts.iter().map(|part| part["text"].as_str()).collect();
            let Some(texts) = texts else {
                return Err(Refusal::of(
                    "messages",
                    "this model reads text: a part of a message is something else",
                ));
            };
            message.content = Value::String(texts.join("\n"));
        }
        read_arguments(message);
        // What OpenAI calls the developer, templates call the system.
        if message.role == "developer" {
            message.role = "system".to_owned();
        }
    }
    Ok(messages)
}

/// What else the template is told.
fn variables(fields: &mut Fields) -> Result<Map<String, Value>, Refusal> {
    let mut variables: Map<String, Value> = fields.take("chat_template_kwargs")?.unwrap_or_default();
    if let Some(effort) = fields.take::<String>("reasoning_effort")? {
        variables.insert("reasoning_effort".to_owned(), Value::String(effort));
    }
    Ok(variables)
}

fn begin_plain(service: &Service, fields: &mut Fields) -> Begun {
    let prompts = prompts(service, fields)?;
    let echo = fields.take("echo")?.unwrap_or(false);
    fields.only("suffix", &json!(""), "is not something that this model can be asked to lead to")?;
    // Who wants the prompt back may want nothing else.
    let mut asked = Asked::take(fields, service, u64::from(!echo), PLAIN_COUNT)?;
    asked.echo = echo;
    fields.only("best_of", &json!(asked.texts), "is `n`: all texts are given")?;
    asked.settings.logprobs = fields.count("logprobs", 0, 20)?;
    std::mem::take(fields).finish()?;
    let answer = begin_texts(service, &asked, prompts, Kind::Plain)?;
    Ok((asked, answer))
}

/// Prompts as texts or as ids, one or several.
fn prompts(service: &Service, fields: &mut Fields) -> Result<Vec<Vec<u32>>, Refusal> {
    let refused = || Refusal::of("prompt", "`prompt` is a text, a list of token ids, or a list of either");
    let ids = |value: &Value| -> Option<Vec<u32>> {
        let items = value.as_array()?.iter();
        items.map(|item| item.as_u64().and_then(|id| u32::try_from(id).ok())).collect()
    };
    let one = |value: &Value| match value {
        Value::String(text) => Ok(service.text.encode(text, true)?),
        value => ids(value).ok_or_else(refused),
    };
    match fields.need::<Value>("prompt")? {
        Value::Array(items) if !items.is_empty() && !items[0].is_number() => items.iter().map(one).collect(),
        value => Ok(vec![one(&value)?]),
    }
}

fn begin_texts(
    service: &Service,
    asked: &Asked,
    prompts: Vec<Vec<u32>>,
    kind: Kind,
) -> Result<Answer, Refusal> {
    let (model, text) = (service.info.name, service.text.clone());
    let choices = prompts.len() * asked.texts;
    let shape = CompletionShape::new(kind, model, text, choices, asked);
    service.begin(asked, prompts, Box::new(shape))
}

async fn tokenize(State(service): Shared, body: Body) -> Outcome {
    let answer = aside(service, body, |service, mut fields| {
        service.check_model(&mut fields)?;
        let specials = fields.take("add_special_tokens")?.unwrap_or(true);
        let text = match fields.take::<String>("prompt")? {
            Some(text) => Some(text),
            None => fields.take("content")?,
        };
        let tokens = match text {
            Some(text) => service.text.encode(&text, specials)?,
            None => {
                let (messages, variables) = (messages(&mut fields)?, variables(&mut fields)?);
                service.conversation(&messages, &[], &variables)?
            }
        };
        fields.finish()?;
        Ok(json!({ "tokens": tokens, "count": tokens.len(), "max_model_len": service.context }))
    });
    Ok(json_response(StatusCode::OK, &answer.await?))
}

async fn detokenize(State(service): Shared, body: Body) -> Outcome {
    let answer = aside(service, body, |service, mut fields| {
        service.check_model(&mut fields)?;
        let tokens: Vec<u32> = fields.need("tokens")?;
        fields.finish()?;
        let text = service.text.decode(&tokens)?;
        Ok(json!({ "prompt": text, "content": text }))
    });
    Ok(json_response(StatusCode::OK, &answer.await?))
}
