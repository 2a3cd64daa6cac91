// The C interface of the library as a Swift class.

import CLanguageModel
import Foundation

/// A model and one conversation. Calls block for seconds, so they run one after another on a queue of their own.
final class LanguageModel: @unchecked Sendable {
    typealias Reply = AsyncThrowingStream<String, Error>

    struct Failure: LocalizedError {
        let errorDescription: String?
    }

    private let queue = DispatchQueue(label: "language-model", qos: .userInitiated)
    private let model: OpaquePointer

    /// Loads the model whose files are in `directory`. Blocks: call it outside the main thread.
    init(directory: URL, context: UInt32 = 4096, experts: String? = nil) throws {
        var error: UnsafeMutablePointer<CChar>?
        defer { language_model_free_error(error) }
        guard let model = language_model_open(directory.path, context, experts, &error) else {
            throw Failure(errorDescription: error.map { String(cString: $0) })
        }
        self.model = model
    }

    deinit { language_model_free(model) }

    /// The reply to a message, piece by piece. It stops when its reader does.
    func reply(to message: String, maxTokens: Int = 512) -> Reply {
        Reply { continuation in
            queue.async { [self] in
                var reader = continuation
                var error: UnsafeMutablePointer<CChar>?
                defer { language_model_free_error(error) }
                let succeeded = withUnsafeMutablePointer(to: &reader) { reader in
                    language_model_reply(model, message, maxTokens, .random(in: 0 ... .max), { reader, text, length in
                        let reader = reader!.assumingMemoryBound(to: Reply.Continuation.self)
                        let piece = UnsafeRawBufferPointer(start: text, count: length)
                        if case .terminated = reader.pointee.yield(String(decoding: piece, as: UTF8.self)) { return false }
                        return true
                    }, reader, &error)
                }
                continuation.finish(throwing: succeeded ? nil : Failure(errorDescription: error.map { String(cString: $0) }))
            }
        }
    }
}
