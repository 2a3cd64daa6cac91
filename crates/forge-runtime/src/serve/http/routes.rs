//! The endpoints: which paths there are, and what each makes of a body.
//!
//! Reading a body, rendering a conversation and encoding it take a while for long ones, so that happens aside; the thread
//! that serves connections never waits for it. Requests with a grammar go on on threads of their own.

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

/// Bytes that any body may have, and for each position of the context: more than a token has, written in the most
/// roundabout way.
const BODY: usize = 2 << 20;
const BODY_FOR_POSITION: usize = 64;
/// How long a body may take to come.
const BODY_TIME: Duration = Duration::from_secs(30);

type Shared = State<Arc<ServerState>>;
type Outcome = Result<Response, ApiError>;
/// What a request for text begins.
type Begun = Result<(GenerationRequest, PendingResponse), ApiError>;

/// Every path.
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
        .fallback(nowhere)
        .method_not_allowed_fallback(wrong_method)
        .layer(from_fn_with_state(service.clone(), guard))
        .with_state(service)
}

async fn nowhere(uri: Uri) -> ApiError {
    ApiError::new(StatusCode::NOT_FOUND, format!("there is nothing at {}", uri.path())).code("unknown_url")
}

async fn wrong_method(method: Method, uri: Uri) -> ApiError {
    let message = format!("{} does not take {method}", uri.path());
    ApiError::new(StatusCode::METHOD_NOT_ALLOWED, message).code("method_not_allowed")
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

fn described(service: &ServerState, name: &str) -> Value {
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

async fn model(State(service): Shared, name: Result<Path<String>, PathRejection>) -> Outcome {
    let Path(name) = name.map_err(|why| ApiError::new(StatusCode::BAD_REQUEST, why.body_text()))?;
    match service.answers_to(&name) {
        true => Ok(json_response(StatusCode::OK, &described(&service, &name))),
        false => Err(service.unknown_model(&name)),
    }
}

/// A causal model's states say what comes next, not what a text is about.
async fn embeddings() -> ApiError {
    let message = "this model was made to continue texts, and what it would give for an embedding finds nothing well: \
                   a model that was made for embeddings does";
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

/// Answers a request for text.
async fn begin(
    service: Arc<ServerState>,
    body: Body,
    make: fn(&ServerState, &mut Fields) -> Begun,
) -> Outcome {
    let (asked, answer) = aside(service, body, move |service, mut fields| {
        service.check_model(&mut fields)?;
        make(service, &mut fields)
    })
    .await?;
    answer.response(asked.stream).await
}

/// Reads a body, and does something with its fields on another thread.
async fn aside<T: Send + 'static>(
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
        Err(ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "this request made a part of the server fail"))
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

/// What has become of a request when its body has been read.
enum Begin<T, W> {
    Done(T),
    /// It goes on on a thread that compiles grammars.
    WithGrammar(Fields, W),
}

async fn read(body: Body, most: usize) -> Result<Bytes, ApiError> {
    // What a Content-Length says is not waited for.
    let said = body.size_hint().lower();
    if said > most as u64 {
        let message = format!("the body has {said} bytes; the limit is {most}");
        return Err(ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, message));
    }
    match tokio::time::timeout(BODY_TIME, to_bytes(body, most)).await {
        Ok(Ok(bytes)) => Ok(bytes),
        Ok(Err(_)) => {
            let message = format!("the body did not come whole, or has more than {most} bytes");
            Err(ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, message))
        }
        Err(_) => Err(ApiError::new(StatusCode::REQUEST_TIMEOUT, "the body took too long to come")),
    }
}

async fn tokenize(State(service): Shared, body: Body) -> Outcome {
    let answer = aside(service, body, |service, mut fields| {
        service.check_model(&mut fields)?;
        let specials = fields.take("add_special_tokens")?.unwrap_or(true);
        let text = match fields.take::<String>("prompt")? {
            Some(text) => Some(text),
            None => fields.take("content")?,
        };
        if text.is_none() && fields.get("messages").is_none() {
            return Err(ApiError::of(
                "prompt",
                "`prompt` (or `content`) with a text, or `messages`, is missing",
            ));
        }
        let tokens = match text {
            Some(text) => service.text.encode(&text, specials)?,
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
    let answer = aside(service, body, |service, mut fields| {
        service.check_model(&mut fields)?;
        let tokens: Vec<u32> = fields.need("tokens")?;
        fields.finish()?;
        let vocabulary = service.info.vocabulary;
        if let Some(token) = tokens.iter().find(|&&token| token >= vocabulary) {
            let message = format!("token {token} is outside the vocabulary of {vocabulary}");
            return Err(ApiError::of("tokens", message));
        }
        let text = service.text.decode_with_special(&tokens)?;
        Ok(json!({ "prompt": text, "content": text }))
    });
    Ok(json_response(StatusCode::OK, &answer.await?))
}
