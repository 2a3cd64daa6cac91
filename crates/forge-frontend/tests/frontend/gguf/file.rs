//! A simple reader and writer of GGUF files, to change one detail of a file in tests.

/// A GGUF file: metadata values by key, each with its type and bytes; tensors with their dimensions, type and
/// bytes.
#[derive(Clone)]
pub(crate) struct File {
    pub(crate) values: Vec<(String, u32, Vec<u8>)>,
    pub(crate) tensors: Vec<(String, Vec<u64>, u32, Vec<u8>)>,
}

const ALIGNMENT: usize = 32;

struct Take<'a>(&'a [u8], usize);

impl<'a> Take<'a> {
    fn bytes(&mut self, count: usize) -> &'a [u8] {
        self.1 += count;
        &self.0[self.1 - count..self.1]
    }

    fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.bytes(4).try_into().unwrap())
    }

    fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.bytes(8).try_into().unwrap())
    }

    fn text(&mut self) -> String {
        let length = self.u64() as usize;
        String::from_utf8(self.bytes(length).to_vec()).unwrap()
    }

    /// Skips a value.
    fn value(&mut self, kind: u32) {
        let length = match kind {
            0 | 1 | 7 => 1,
            2 | 3 => 2,
            4..=6 => 4,
            8 => self.u64() as usize,
            9 => {
                let (kind, count) = (self.u32(), self.u64());
                (0..count).for_each(|_| self.value(kind));
                0
            }
            _ => 8,
        };
        self.bytes(length);
    }
}

impl File {
    /// Parses a file.
    pub(crate) fn parse(file: &[u8]) -> File {
        let mut take = Take(file, 8);
        let (tensors, values) = (take.u64(), take.u64());
        let value = |take: &mut Take<'_>| {
            let (name, kind) = (take.text(), take.u32());
            let start = take.1;
            take.value(kind);
            (name, kind, file[start..take.1].to_vec())
        };
        let values = (0..values).map(|_| value(&mut take)).collect();
        let tensor = |take: &mut Take<'_>| {
            let (name, dimensions) = (take.text(), take.u32());
            let shape: Vec<u64> = (0..dimensions).map(|_| take.u64()).collect();
            (name, shape, take.u32(), take.u64() as usize)
        };
        let tensors: Vec<_> = (0..tensors).map(|_| tensor(&mut take)).collect();
        let data = &file[take.1.next_multiple_of(ALIGNMENT)..];
        let mut ends: Vec<usize> = tensors.iter().map(|tensor| tensor.3).chain([data.len()]).collect();
        ends.sort_unstable();
        // Includes the padding, which is removed below by the size of the type.
        let bytes = |offset: usize| data[offset..*ends.iter().find(|end| **end > offset).unwrap()].to_vec();
        let tensors =
            tensors.into_iter().map(|(name, shape, kind, offset)| (name, shape, kind, bytes(offset)));
        File { values, tensors: tensors.collect() }
    }

    /// Serializes the file.
    pub(crate) fn write(&self) -> Vec<u8> {
        let text = |text: &str| [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat();
        let mut file = [b"GGUF".as_slice(), &3_u32.to_le_bytes()].concat();
        file.extend((self.tensors.len() as u64).to_le_bytes());
        file.extend((self.values.len() as u64).to_le_bytes());
        for (name, kind, bytes) in &self.values {
            file.extend([text(name), kind.to_le_bytes().to_vec(), bytes.clone()].concat());
        }
        let mut data = Vec::new();
        for (name, shape, kind, bytes) in &self.tensors {
            file.extend(text(name));
            file.extend((shape.len() as u32).to_le_bytes());
            shape.iter().for_each(|size| file.extend(size.to_le_bytes()));
            file.extend(kind.to_le_bytes());
            file.extend((data.len() as u64).to_le_bytes());
            data.extend_from_slice(bytes);
            data.resize(data.len().next_multiple_of(ALIGNMENT), 0);
        }
        file.resize(file.len().next_multiple_of(ALIGNMENT), 0);
        [file, data].concat()
    }

    /// Sets a key to a value of this type.
    pub(crate) fn set(&mut self, key: &str, kind: u32, bytes: &[u8]) {
        self.remove(key);
        self.values.push((key.to_owned(), kind, bytes.to_vec()));
    }

    /// Sets a key to a string.
    pub(crate) fn set_text(&mut self, key: &str, text: &str) {
        self.set(key, 8, &[&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat());
    }

    /// Removes a key.
    pub(crate) fn remove(&mut self, key: &str) {
        self.values.retain(|(name, ..)| name != key);
    }

    /// The tensor of this name.
    pub(crate) fn tensor(&mut self, name: &str) -> &mut (String, Vec<u64>, u32, Vec<u8>) {
        self.tensors.iter_mut().find(|tensor| tensor.0 == name).unwrap()
    }
}
