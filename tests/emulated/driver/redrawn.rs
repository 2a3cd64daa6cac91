//! Many draws of the same logits: the dispatch that draws an id is noted as it goes by, and then submitted again and again,
//! each time with another draw in its place.

use forge_runtime::device::{Binding, Buffer, Device, Kernel, Lead, Pass, Program};
use forge_runtime::draw::{Draw, Weights};
use std::cell::RefCell;
use std::rc::Rc;

/// A dispatch that draws an id.
#[derive(Clone)]
struct Drawing {
    kernel: &'static Kernel,
    bindings: Vec<Binding>,
    scalars: Vec<u32>,
    groups: [u32; 3],
}

/// A device under which whatever draws ids is noted.
pub struct Noting {
    device: Box<dyn Device>,
    last: Rc<RefCell<Option<Drawing>>>,
}

impl Noting {
    pub fn new(device: Box<dyn Device>) -> Noting {
        Noting { device, last: Rc::default() }
    }

    /// What the host and what the device choose by each of these draws, of the logits that the device drew of last.
    pub fn redraw(&mut self, draws: &[Draw]) -> Result<Vec<[u32; 2]>, String> {
        let drawing = self.last.borrow().clone().ok_or("nothing has been drawn")?;
        let binding = |name: &str| {
            let place = drawing.kernel.buffers.iter().position(|buffer| *buffer == name);
            place.map(|place| drawing.bindings[place]).ok_or(format!("{} has no {name}", drawing.kernel.name))
        };
        let [logits, words, id] = [binding("logits")?, binding("draws")?, binding("ids")?];
        let logits: Vec<f32> = self.words(logits).into_iter().map(f32::from_bits).collect();
        let mut weights = Weights::default();
        let choose = |draw: &Draw| {
            let bytes: Vec<u8> = draw.words().iter().flat_map(|word| word.to_le_bytes()).collect();
            self.device.write(words.buffer, words.offset, &bytes);
            self.device.run(Program::Decode, &mut |pass| {
                pass.dispatch(drawing.kernel, &drawing.bindings, &drawing.scalars, drawing.groups);
            })?;
            Ok([weights.draw(&logits, draw), self.words(id)[0]])
        };
        draws.iter().map(choose).collect()
    }

    fn words(&mut self, Binding { buffer, offset, bytes, .. }: Binding) -> Vec<u32> {
        let mut read = vec![0; bytes];
        self.device.read(buffer, offset, &mut read);
        read.chunks_exact(4).map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]])).collect()
    }
}

impl Device for Noting {
    fn describe(&self) -> String {
        self.device.describe()
    }

    fn write(&mut self, buffer: Buffer, offset: usize, bytes: &[u8]) {
        self.device.write(buffer, offset, bytes);
    }

    fn read(&mut self, buffer: Buffer, offset: usize, bytes: &mut [u8]) {
        self.device.read(buffer, offset, bytes);
    }

    fn run(&mut self, program: Program, encode: &mut dyn FnMut(&mut dyn Pass)) -> Result<(), String> {
        let last = &self.last;
        self.device.run(program, &mut |pass| encode(&mut Note { pass, last }))
    }

    fn begin(&mut self, program: Program, encode: &mut dyn FnMut(&mut dyn Pass)) -> Result<(), String> {
        let last = &self.last;
        self.device.begin(program, &mut |pass| encode(&mut Note { pass, last }))
    }

    fn wait(&mut self, left: usize) -> Result<(), String> {
        self.device.wait(left)
    }

    fn lead(&self) -> Lead {
        self.device.lead()
    }
}

/// A pass on its way.
struct Note<'a> {
    pass: &'a mut dyn Pass,
    last: &'a RefCell<Option<Drawing>>,
}

impl Pass for Note<'_> {
    fn dispatch(&mut self, kernel: &'static Kernel, bindings: &[Binding], scalars: &[u32], groups: [u32; 3]) {
        if kernel.buffers.contains(&"draws") {
            let (bindings, scalars) = (bindings.to_vec(), scalars.to_vec());
            self.last.replace(Some(Drawing { kernel, bindings, scalars, groups }));
        }
        self.pass.dispatch(kernel, bindings, scalars, groups);
    }

    fn barrier(&mut self) {
        self.pass.barrier();
    }

    fn cores(&self) -> u32 {
        self.pass.cores()
    }

    fn least_share(&self, planned: u32) -> u32 {
        self.pass.least_share(planned)
    }
}
