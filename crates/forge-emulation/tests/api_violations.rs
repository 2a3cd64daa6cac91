//! Validation in the emulator: correct and incorrect use of Metal by a host, with the expected violations.

#![cfg(target_os = "linux")]

use forge_emulation::{Counts, counts, emulate, live_objects, take_violations};
use std::ffi::{CStr, CString, c_char, c_void};

type Id = *mut c_void;
type Selector = *const c_char;

unsafe extern "C-unwind" {
    fn sel_registerName(name: *const c_char) -> Selector;
    fn objc_msg_lookup(receiver: Id, selector: Selector) -> *const c_void;
    fn objc_retain(object: Id) -> Id;
    fn objc_release(object: Id);
    fn objc_autoreleasePoolPush() -> *mut c_void;
    fn objc_autoreleasePoolPop(pool: *mut c_void);
    fn MTLCreateSystemDefaultDevice() -> Id;
    #[link_name = "._OBJC_CLASS_NSString"]
    static STRING: c_void;
    #[link_name = "._OBJC_CLASS_MTLCompileOptions"]
    static OPTIONS: c_void;
}

/// Sends a message with arguments of these types.
macro_rules! send {
    ($receiver:expr, $selector:literal $(, $value:expr => $type:ty)* ; $result:ty) => {{
        let name = CString::new($selector).expect("no zeros");
        // SAFETY: the types match the method's declaration in Metal's headers.
        unsafe {
            let selector = sel_registerName(name.as_ptr());
            let method = objc_msg_lookup($receiver, selector);
            let method: extern "C-unwind" fn(Id, Selector $(, $type)*) -> $result = std::mem::transmute(method);
            method($receiver, selector $(, $value)*)
        }
    }};
}

const TEXT: &str = "#include <metal_stdlib>
using namespace metal;
struct Scale { uint count; };
[[max_total_threads_per_threadgroup(32)]]
kernel void scale(device const float* x [[buffer(0)]], device float* y [[buffer(1)]],
                  constant Scale& args [[buffer(2)]], uint index [[thread_position_in_grid]]) {
    if (index < args.count) y[index] = 2.0f * x[index];
}
";

fn string(text: &str) -> Id {
    let new = send!((&raw const STRING).cast_mut(), "alloc"; Id);
    send!(new, "initWithBytes:length:encoding:", text.as_ptr() => *const u8, text.len() => usize, 4 => i32; Id)
}

/// Compiles a library, or returns the error's description.
fn library(device: Id, text: &str) -> Result<Id, String> {
    let options = send!((&raw const OPTIONS).cast_mut(), "new"; Id);
    send!(options, "setLanguageVersion:", 3 << 16 => usize; ());
    send!(options, "setMathMode:", 0 => isize; ());
    send!(options, "setMathFloatingPointFunctions:", 1 => isize; ());
    let (text, mut error) = (string(text), std::ptr::null_mut());
    let library = send!(device, "newLibraryWithSource:options:error:", text => Id, options => Id, &mut error => *mut Id; Id);
    release(&[text, options]);
    if !library.is_null() {
        return Ok(library);
    }
    let result = send!(error, "localizedDescription"; Id);
    let result = send!(result, "UTF8String"; *const c_char);
    // SAFETY: the string lives until the pool is closed.
    Err(unsafe { CStr::from_ptr(result) }.to_string_lossy().into_owned())
}

fn release(objects: &[Id]) {
    // SAFETY: the caller owns a reference to each.
    objects.iter().for_each(|object| unsafe { objc_release(*object) });
}

/// Runs a closure in an autorelease pool.
fn with_autorelease_pool<T>(work: impl FnOnce() -> T) -> T {
    // SAFETY: pools are closed in reverse order.
    unsafe {
        let pool = objc_autoreleasePoolPush();
        let result = work();
        objc_autoreleasePoolPop(pool);
        result
    }
}

/// Runs a script on one command buffer. Returns the result that the host gets, and all violations. `x` and `y` have 64
/// floats each; `y` is uninitialized. Numbers are offsets, lengths and grids.
fn run_script(script: &str) -> String {
    emulate();
    // SAFETY: has no preconditions.
    let device = unsafe { MTLCreateSystemDefaultDevice() };
    let mut result = Vec::new();
    with_autorelease_pool(|| {
        let library = library(device, TEXT).expect("it compiles");
        let name = string("scale");
        let function = send!(library, "newFunctionWithName:", name => Id; Id);
        let nowhere: *mut Id = std::ptr::null_mut();
        let pipeline = send!(device, "newComputePipelineStateWithFunction:error:", function => Id, nowhere => *mut Id; Id);
        let buffer = || send!(device, "newBufferWithLength:options:", 256 => usize, 0 => usize; Id);
        let (x, y) = (buffer(), buffer());
        let floats = send!(x, "contents"; *mut f32);
        // SAFETY: the buffer has this many elements.
        (0..64).for_each(|index| unsafe { floats.add(index).write(index as f32) });
        let queue = send!(device, "newCommandQueue"; Id);
        let mut commands = send!(queue, "commandBuffer"; Id);
        let mut has_x = true;
        let mut encoder = std::ptr::null_mut();
        for word in script.split_whitespace() {
            let (word, number) = word.split_once(':').unwrap_or((word, "0"));
            let (number, threads) = number.split_once('x').unwrap_or((number, "32"));
            let (number, threads): (usize, usize) =
                (number.parse().expect("a number"), threads.parse().expect("a number"));
            let encode =
                |kind: usize| send!(commands, "computeCommandEncoderWithDispatchType:", kind => usize; Id);
            let bind = |buffer, slot: usize| {
                send!(encoder, "setBuffer:offset:atIndex:", buffer => Id, number => usize, slot => usize; ());
            };
            match word {
                "unretained" => commands = send!(queue, "commandBufferWithUnretainedReferences"; Id),
                "x-given-back" if std::mem::take(&mut has_x) => release(&[x]),
                "encoder" => encoder = encode(1),
                "serial" => encoder = encode(0),
                "pipeline" => send!(encoder, "setComputePipelineState:", pipeline => Id; ()),
                "x" => bind(x, 0),
                "y" => bind(y, 1),
                "y-as-x" => bind(y, 0),
                "scalars" => {
                    let words = [1000u32; 2000];
                    send!(encoder, "setBytes:length:atIndex:", words.as_ptr().cast() => *const u8, number => usize, 2 => usize; ());
                }
                "dispatch" => send!(
                    encoder,
                    "dispatchThreadgroups:threadsPerThreadgroup:",
                    [number, 1, 1] => [usize; 3],
                    [threads, 1, 1] => [usize; 3];
                    ()
                ),
                "barrier" => send!(encoder, "memoryBarrierWithScope:", 1 => usize; ()),
                "end" => send!(encoder, "endEncoding"; ()),
                "commit" => send!(commands, "commit"; ()),
                "wait" => send!(commands, "waitUntilCompleted"; ()),
                // SAFETY: the buffer has this many elements.
                "host-writes" => unsafe { floats.add(number).write(7.0) },
                _ => panic!("unknown command {word}"),
            }
        }
        let error = send!(commands, "error"; Id);
        let numbers = send!(y, "contents"; *const f32);
        // SAFETY: the buffer has this many elements.
        let last = unsafe { numbers.add(63).read() };
        result.push(if error.is_null() { format!("y ends in {last}") } else { "error".to_owned() });
        release(&[queue, y, pipeline, function, name, library]);
        release(&[x][usize::from(!has_x)..]);
    });
    release(&[device]);
    result.extend(take_violations());
    assert!(live_objects().is_empty(), "{script}: {:?}", live_objects());
    result.join("; ")
}

#[test]
fn reports_api_violations() {
    let cases = [
        // Correct use.
        ("encoder pipeline x y scalars:4 dispatch:2x32 end commit wait", "y ends in 126"),
        ("encoder pipeline x y scalars:4 dispatch:2 barrier dispatch:2 end commit wait", "y ends in 126"),
        ("serial pipeline x y scalars:4 dispatch:2 dispatch:2 end commit wait", "y ends in 126"),
        ("encoder pipeline x y scalars:4 dispatch:2 end", "y ends in NaN"),
        ("encoder pipeline x y scalars:4 dispatch:2 end commit", "never waited for"),
        // Bindings.
        ("encoder x y scalars:4 dispatch:2 end commit wait", "dispatch of no kernel: no pipeline is set"),
        ("encoder pipeline y scalars:4 dispatch:2 end commit wait", "`x` in slot 0 is not bound"),
        (
            "encoder pipeline x:256 y scalars:4 dispatch:2 end commit wait",
            "offset 256 of a buffer of 256 bytes",
        ),
        (
            "encoder pipeline x:6 y scalars:4 dispatch:2 end commit wait",
            "byte 6, which is not a multiple of 4",
        ),
        ("encoder pipeline x y dispatch:2 end commit wait", "its scalars, 4 bytes, are not bound"),
        (
            "encoder pipeline x y scalars:8 dispatch:2 end commit wait",
            "its scalars are 4 bytes, but 8 are bound",
        ),
        ("encoder pipeline x y scalars:4100 dispatch:2 end commit wait", "setBytes of 4100 bytes"),
        // Launches.
        (
            "encoder pipeline x y scalars:4 dispatch:1x64 end commit wait",
            "threadgroups of [64, 1, 1] threads",
        ),
        ("encoder pipeline x y scalars:4 dispatch:0 end commit wait", "empty grid"),
        ("encoder pipeline x y scalars:4 dispatch:3 end commit wait", "out_of_bounds: scale line 7"),
        ("encoder pipeline x:128 y scalars:4 dispatch:2 end commit wait", "of `x`, which has 128 bytes"),
        ("encoder pipeline x y scalars:4 dispatch:2 dispatch:2 end commit wait", "no barrier stands between"),
        ("encoder pipeline y-as-x y scalars:4 dispatch:2 end commit wait", "which nothing has written"),
        // Order of calls.
        ("encoder pipeline x y scalars:4 dispatch:2 commit wait", "before its encoder has ended"),
        ("encoder end end", "endEncoding after the encoder has ended"),
        (
            "encoder pipeline x y scalars:4 end dispatch:2 commit wait",
            "dispatchThreadgroups after the encoder",
        ),
        ("encoder encoder end", "a command buffer that is Encoding"),
        ("encoder end commit encoder end", "a command buffer that is Committed"),
        ("encoder end wait", "is Open, not committed"),
        ("encoder end commit commit wait", "is Committed already"),
        (
            "encoder pipeline x y scalars:4 dispatch:2 end commit host-writes wait",
            "a pass in flight accesses",
        ),
        // Its 32 threads read the first 32 of x.
        ("encoder pipeline x y scalars:4 dispatch:1 end commit host-writes:32 wait", "y ends in NaN"),
        // Lifetime of resources, with retained and unretained references.
        ("encoder pipeline x y scalars:4 dispatch:2 end x-given-back commit wait", "y ends in 126"),
        ("unretained encoder pipeline x y scalars:4 dispatch:2 end commit wait", "y ends in 126"),
        (
            "unretained encoder pipeline x y scalars:4 dispatch:2 end commit x-given-back wait",
            "released before a pass that uses it has completed",
        ),
        ("encoder", "released before endEncoding"),
    ];
    let wrong: Vec<String> = cases
        .iter()
        .map(|(script, expected)| (script, expected, run_script(script)))
        .filter(|(_, expected, result)| {
            !result.contains(*expected) || (expected.starts_with("y ends") && result != *expected)
        })
        .map(|(script, expected, result)| format!("{script}: {result:?}, not {expected:?}"))
        .collect();
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

#[test]
fn compile_error_has_the_line_number() {
    emulate();
    // SAFETY: has no preconditions.
    let device = unsafe { MTLCreateSystemDefaultDevice() };
    with_autorelease_pool(|| {
        let result = library(device, &TEXT.replace("x[index]", "z[index]")).expect_err("there is no z");
        assert!(result.contains('7') && result.contains('z'), "{result}");
        let whole = library(device, TEXT).expect("it compiles");
        let name = string("shrink");
        assert!(send!(whole, "newFunctionWithName:", name => Id; Id).is_null());
        release(&[whole, name]);
    });
    release(&[device]);
    assert_eq!((take_violations(), live_objects().len()), (Vec::new(), 0));
}

#[test]
fn counts_committed_work() {
    let before = counts();
    run_script("encoder pipeline x y scalars:4 dispatch:2 barrier dispatch:2 end commit wait");
    let Counts { command_buffers, dispatches, barriers, .. } = counts();
    let difference = [
        command_buffers - before.command_buffers,
        dispatches - before.dispatches,
        barriers - before.barriers,
    ];
    assert_eq!(difference, [1, 2, 1]);
}

#[test]
fn objects_live_until_the_last_release() {
    emulate();
    let text = with_autorelease_pool(|| {
        let text = string("kept");
        // SAFETY: the object is alive.
        unsafe { objc_retain(text) };
        release(&[text]);
        // SAFETY: has no preconditions.
        let device = unsafe { MTLCreateSystemDefaultDevice() };
        let name = with_autorelease_pool(|| send!(device, "name"; Id));
        let after_pool = std::panic::catch_unwind(|| send!(name, "UTF8String"; *const c_char));
        assert!(after_pool.is_err(), "a name is gone with the pool that it was left to");
        release(&[device]);
        text
    });
    assert_eq!(live_objects().into_iter().collect::<Vec<_>>(), [("NSString", 1)]);
    release(&[text]);
    assert!(live_objects().is_empty());
    release(&[text]);
    assert_eq!(take_violations(), ["a freed object is released"]);
}

#[test]
fn no_copy_buffers_must_be_page_aligned() {
    emulate();
    // SAFETY: has no preconditions.
    let device = unsafe { MTLCreateSystemDefaultDevice() };
    let memory = [0u8; 40000];
    let start = memory.as_ptr().addr().next_multiple_of(4096) - memory.as_ptr().addr();
    let none = std::ptr::null::<u8>();
    let are_created =
        [(start, 16384), (start + 16, 16384), (start, 16000), (start, 0)].map(|(at, length)| {
            let bytes = memory[at..].as_ptr();
            let buffer = send!(
                device,
                "newBufferWithBytesNoCopy:length:options:deallocator:",
                bytes => *const u8, length => usize, 0 => usize, none => *const u8;
                Id
            );
            release(&[buffer]);
            !buffer.is_null()
        });
    assert_eq!(are_created, [true, false, false, false]);
    assert_eq!(take_violations().len(), 3);
    release(&[device]);
}
