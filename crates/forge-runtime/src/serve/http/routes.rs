//! The HTTP endpoints.
//!
//! Parsing, template rendering and tokenization may take long, so they run on blocking threads. Requests with
//! a grammar continue on separate threads.

use crate::serve::api::request::GenerationRequest;
use crate::serve::api::response::PendingResponse;
use crate::serve::api::state::ServerState;
use crate::serve::api::{chat, completions, responses};
use crate::serve::http::auth::guard;
use crate::serve::http::error::{ApiError, json_response, typed};
use crate::serve::http::fields::Fields;
use axum::Router;
use axum::body::{Body, Bytes, HttpBody, to_bytes};
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::{HeaderValue, Method, StatusCode, Uri, header};
use axum::middleware::from_fn_with_state;
use axum::response::Response;
use axum::routing::{get, post};
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// Maximum body size in bytes, and per token of context: more than a token needs in any JSON encoding.
const BODY: usize = 2 << 20;
const BODY_FOR_POSITION: usize = 64;
/// Time limit for receiving a body.
const BODY_TIME: Duration = Duration::from_secs(30);

type Shared = State<Arc<ServerState>>;
type Outcome = Result<Response, ApiError>;
/// A parsed generation request and its pending response.
type Begun = Result<(GenerationRequest, PendingResponse), ApiError>;

/// The router of all endpoints.
pub(crate) fn router(service: Arc<ServerState>) -> Router {
    Router::new()
        .route("/", get(page))
        .route("/v1/chat/completions", post(converse))
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
        .fallback(not_found)
        .method_not_allowed_fallback(wrong_method)
        .layer(from_fn_with_state(service.clone(), guard))
        .with_state(service)
}

async fn not_found(uri: Uri) -> ApiError {
    ApiError::new(StatusCode::NOT_FOUND, format!("not found: {}", uri.path())).code("unknown_url")
}

async fn wrong_method(method: Method, uri: Uri) -> ApiError {
    let message = format!("{} does not support {method}", uri.path());
    ApiError::new(StatusCode::METHOD_NOT_ALLOWED, message).code("method_not_allowed")
}

/// The chat page. Its content security policy forbids external resources.
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

fn described(service: &ServerState, name: &str) -> Value {
    json!({
        "id": name,
        "object": "model",
        "created": service.created,
        "owned_by": "forge",
        "context_length": service.context,
        "max_model_len": service.context,
        "vocab_size": service.info.vocabulary,
        "architecture": service.info.architecture,
        "has_chat_template": service.template.is_some(),
    })
}

async fn models(State(service): Shared) -> Response {
    let names = std::iter::once(service.info.name).chain(service.aliases.iter().map(String::as_str));
    let data: Vec<Value> = names.map(|name| described(&service, name)).collect();
    json_response(StatusCode::OK, &json!({ "object": "list", "data": data }))
}

async fn model(State(service): Shared, name: Result<Path<String>, PathRejection>) -> Outcome {
    let Path(name) = name.map_err(|why| ApiError::new(StatusCode::BAD_REQUEST, why.body_text()))?;
    match service.accepts_model(&name) {
        true => Ok(json_response(StatusCode::OK, &described(&service, &name))),
        false => Err(service.unknown_model(&name)),
    }
}

/// Embeddings are not supported: a causal language model gives poor ones.
async fn embeddings() -> ApiError {
    let message = "embeddings are not supported: a causal language model gives poor embeddings";
    ApiError::new(StatusCode::NOT_FOUND, message).code("no_embeddings")
}

async fn converse(State(service): Shared, body: Body) -> Outcome {
    begin(service, body, chat::begin).await
}

async fn respond(State(service): Shared, body: Body) -> Outcome {
    begin(service, body, responses::begin).await
}

async fn complete(State(service): Shared, body: Body) -> Outcome {
    begin(service, body, completions::begin).await
}

/// Handles a generation request.
async fn begin(
    service: Arc<ServerState>,
    body: Body,
    make: fn(&ServerState, &mut Fields) -> Begun,
) -> Outcome {
    let (completion, answer) = on_blocking_thread(service, body, move |service, mut fields| {
        service.check_model(&mut fields)?;
        make(service, &mut fields)
    })
    .await?;
    answer.response(completion.stream).await
}

/// Receives a body and processes its fields on a blocking thread.
async fn on_blocking_thread<T: Send + 'static>(
    service: Arc<ServerState>,
    body: Body,
    work: impl FnOnce(&ServerState, Fields) -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    let most = BODY.max(BODY_FOR_POSITION * service.context as usize);
    let bytes = read(body, most).await?;
    let of_thread = service.clone();
    let begun = tokio::task::spawn_blocking(move || {
        let fields = Fields::parse(&bytes)?;
        Ok(match fields.may_have_grammar() {
            true => Begin::WithGrammar(fields, work),
            false => Begin::Done(work(&of_thread, fields)?),
        })
    });
    let begun = begun.await.unwrap_or_else(|_| {
        Err(ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "internal error while processing the request"))
    })?;
    match begun {
        Begin::Done(done) => Ok(done),
        Begin::WithGrammar(fields, work) => {
            let (prepared, of_thread) = (service.clone(), service.clone());
            let prepare = move || prepared.grammars.prepare();
            service.grammar_threads.run(prepare, move || work(&of_thread, fields)).await
        }
    }
}

/// A request after its body was parsed.
enum Begin<T, W> {
    Done(T),
    /// It continues on a grammar thread.
    WithGrammar(Fields, W),
}

async fn read(body: Body, most: usize) -> Result<Bytes, ApiError> {
    // A Content-Length above the limit is rejected before the body is received.
    let length = body.size_hint().lower();
    if length > most as u64 {
        let message = format!("the request body has {length} bytes; the limit is {most}");
        return Err(ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, message));
    }
    match tokio::time::timeout(BODY_TIME, to_bytes(body, most)).await {
        Ok(Ok(bytes)) => Ok(bytes),
        Ok(Err(_)) => {
            let message = format!("the request body is incomplete or exceeds {most} bytes");
            Err(ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, message))
        }
        Err(_) => Err(ApiError::new(StatusCode::REQUEST_TIMEOUT, "timeout while receiving the request body")),
    }
}

async fn tokenize(State(service): Shared, body: Body) -> Outcome {
    let answer = on_blocking_thread(service, body, |service, mut fields| {
        service.check_model(&mut fields)?;
        let specials = fields.take("add_special_tokens")?.unwrap_or(true);
        let text = match fields.take::<String>("prompt")? {
            Some(text) => Some(text),
            None => fields.take("content")?,
        };
        if text.is_none() && fields.get("messages").is_none() {
            return Err(ApiError::of("prompt", "`prompt` (or `content`) or `messages` is required"));
        }
        let tokens = match text {
            Some(text) => service.tokenizer.encode(&text, specials)?,
            None => {
                let (messages, variables) = (chat::messages(&mut fields)?, chat::variables(&mut fields)?);
                service.conversation(&messages, &[], &variables)?
            }
        };
        fields.finish()?;
        Ok(json!({ "tokens": tokens, "count": tokens.len(), "max_model_len": service.context }))
    });
    Ok(json_response(StatusCode::OK, &answer.await?))
}

async fn detokenize(State(service): Shared, body: Body) -> Outcome {
    let answer = on_blocking_thread(service, body, |service, mut fields| {
        service.check_model(&mut fields)?;
        let tokens: Vec<u32> = fields.need("tokens")?;
        fields.finish()?;
        let vocabulary = service.info.vocabulary;
        if let Some(token) = tokens.iter().find(|&&token| token >= vocabulary) {
            let message = format!("token id {token} is not below the vocabulary size {vocabulary}");
            return Err(ApiError::of("tokens", message));
        }
        let text = service.tokenizer.decode_with_special(&tokens)?;
        Ok(json!({ "prompt": text, "content": text }))
    });
    Ok(json_response(StatusCode::OK, &answer.await?))
}
