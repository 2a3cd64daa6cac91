//! A C interface to one compiled model: open it, generate replies, free it. `include/language_model.h` describes the functions
//! and what callers have to ensure.
#![allow(clippy::missing_safety_doc, reason = "it is in the header")]

use model::{Conversation, Event, GenerationParams, LoadOptions, Message, SamplingParams, Session};
use std::ffi::{CStr, CString, c_char, c_void};
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::ptr::null_mut;

/// A loaded model and its conversation.
pub struct LanguageModel {
    /// `None` after a panic, which may have left the session in an inconsistent state.
    session: Option<Session>,
    sampling: SamplingParams,
    messages: Vec<Message>,
}

/// Receives a piece of text: the caller's data, and UTF-8 of that many bytes. Returns whether to continue.
type OnText = extern "C" fn(*mut c_void, *const c_char, usize) -> bool;

#[unsafe(no_mangle)]
pub unsafe extern "C" fn language_model_open(
    directory: *const c_char,
    context: u32,
    experts: *const c_char,
    error: *mut *mut c_char,
) -> *mut LanguageModel {
    let open = || {
        // SAFETY: the caller passes a null-terminated string or null.
        let directory = Some(PathBuf::from(unsafe { text(directory, "directory") }?));
        let mut options = LoadOptions { directory, ..LoadOptions::default() };
        options.context = (context > 0).then_some(context);
        if !experts.is_null() {
            // SAFETY: as above.
            options.experts = unsafe { text(experts, "experts") }?.parse()?;
        }
        let sampling = options.sampling(&model::PROGRAM).map_err(|error| error.to_string())?;
        let session = Some(model::open(&options).map_err(|error| error.to_string())?);
        Ok(Box::into_raw(Box::new(LanguageModel { session, sampling, messages: Vec::new() })))
    };
    // SAFETY: the caller passes null or a writable pointer.
    unsafe { guarded(error, open) }.unwrap_or(null_mut())
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn language_model_reply(
    model: *mut LanguageModel,
    message: *const c_char,
    max_tokens: usize,
    seed: u64,
    on_text: Option<OnText>,
    user_data: *mut c_void,
    error: *mut *mut c_char,
) -> bool {
    let reply = || {
        // SAFETY: the caller passes a model that no other call uses, or null.
        let LanguageModel { session, sampling, messages } =
            unsafe { model.as_mut() }.ok_or("model is null")?;
        // SAFETY: the caller passes a null-terminated string or null.
        let message = unsafe { text(message, "message") }?;
        let on_text = on_text.ok_or("on_text is null")?;
        let mut running = session.take().ok_or("an earlier call failed: open the model again")?;
        let mut params = GenerationParams { seed, max_tokens, ..GenerationParams::default() };
        params.sampling = sampling.clone();
        let mut goes_on = true;
        let mut on_event = |event: Event<'_>| {
            // Text is empty while a character is incomplete. After a stop there may be text that was held back.
            if let Event::Token(token) = event
                && goes_on
                && !token.text.is_empty()
            {
                goes_on = on_text(user_data, token.text.as_ptr().cast(), token.text.len());
            }
            if goes_on { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        };
        messages.push(Message::user(message));
        let prompt = running.prompt(&Conversation::new(messages));
        let generated = prompt.and_then(|prompt| running.generate(&prompt, params, None, &mut on_event));
        *session = Some(running);
        let reply = generated.map_err(|error| {
            messages.pop();
            error.to_string()
        })?;
        messages.push(Message::assistant(reply.text));
        Ok(())
    };
    // SAFETY: the caller passes null or a writable pointer.
    unsafe { guarded(error, reply) }.is_some()
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn language_model_clear(model: *mut LanguageModel) {
    // SAFETY: the caller passes a model that no other call uses, or null.
    if let Some(model) = unsafe { model.as_mut() } {
        model.messages.clear();
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn language_model_free(model: *mut LanguageModel) {
    if !model.is_null() {
        // SAFETY: the model is from `Box::into_raw`, and is freed once.
        let _ = catch_unwind(AssertUnwindSafe(|| drop(unsafe { Box::from_raw(model) })));
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn language_model_free_error(message: *mut c_char) {
    if !message.is_null() {
        // SAFETY: the message is from `CString::into_raw`, and is freed once.
        drop(unsafe { CString::from_raw(message) });
    }
}

/// The string at `string`, which is null, or null-terminated and valid for `'a`.
unsafe fn text<'a>(string: *const c_char, name: &str) -> Result<&'a str, String> {
    if string.is_null() {
        return Err(format!("{name} is null"));
    }
    // SAFETY: as above.
    unsafe { CStr::from_ptr(string) }.to_str().map_err(|error| format!("{name} is not UTF-8: {error}"))
}

/// Runs `work`. Catches panics, which must not cross into C. Writes an error's message to `error`, which is null or writable.
unsafe fn guarded<T>(error: *mut *mut c_char, work: impl FnOnce() -> Result<T, String>) -> Option<T> {
    let message = match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(value)) => return Some(value),
        Ok(Err(message)) => message,
        Err(_) => "internal error: its message is on standard error".to_owned(),
    };
    if !error.is_null() {
        let message = CString::new(message.replace('\0', " ")).unwrap_or_default();
        // SAFETY: as above.
        unsafe { error.write(message.into_raw()) };
    }
    None
}
