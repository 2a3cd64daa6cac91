//! What a pass does, as data: launches in order, and where they wait. A pass of the same launches as the one before it
//! has become a graph, which the driver starts as a whole.
//!
//! A pass is run launch by launch the first time. If the next pass has the same kernels in the same order it is made a
//! graph, whose nodes wait for those before the last barrier and for nothing else; from then on such passes start the
//! graph, and a launch whose grid or scalars have changed is set anew in it before. What a token changes from one to the
//! next, its id and its position, is in memory and in no launch.
//!
//! Where kernels wait themselves for what was before them, and the driver knows of that, a node that waits for a single one is begun
//! when that one's threadgroups are all there: what it takes to begin a kernel is over when the one before has ended.

use crate::gpu::cuda::driver::{Address, Driver, Edge, Handle, NodeParameters, call};
use std::ffi::c_void;
use std::ops::Range;
use std::ptr::null_mut;

/// One kernel over its threadgroups.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Launch {
    function: Handle,
    threads: u32,
    groups: [u32; 3],
    /// Its arguments, as they lie in the kernel's parameters.
    arguments: Range<usize>,
    /// Barriers before it.
    barriers: u32,
}

/// The launches of a pass.
#[derive(Clone, Debug, Default)]
pub(crate) struct LaunchList {
    list: Vec<Launch>,
    arguments: Vec<u8>,
    barriers: u32,
}

impl LaunchList {
    /// None, with room for as many as there were.
    pub(crate) fn clear(&mut self) {
        self.list.clear();
        self.arguments.clear();
        self.barriers = 0;
    }

    /// One more. `arguments` are addresses of buffers, and the scalars after them.
    pub(crate) fn add(
        &mut self,
        function: Handle,
        threads: u32,
        groups: [u32; 3],
        addresses: &[Address],
        scalars: &[u32],
    ) {
        let start = self.arguments.len();
        addresses.iter().for_each(|address| self.arguments.extend(address.to_ne_bytes()));
        scalars.iter().for_each(|scalar| self.arguments.extend(scalar.to_ne_bytes()));
        let arguments = start..self.arguments.len();
        // The next one's addresses are aligned as they have to be.
        self.arguments.resize(self.arguments.len().next_multiple_of(8), 0);
        self.list.push(Launch { function, threads, groups, arguments, barriers: self.barriers });
    }

    /// What comes waits for what was.
    pub(crate) fn barrier(&mut self) {
        self.barriers += 1;
    }

    /// Whether the same kernels are launched in the same order: a graph of the one can be made one of the other.
    fn is_like(&self, other: &LaunchList) -> bool {
        let same = |(a, b): (&Launch, &Launch)| {
            a.function == b.function && a.barriers == b.barriers && a.arguments == b.arguments
        };
        self.list.len() == other.list.len() && self.list.iter().zip(&other.list).all(same)
    }

    /// Whether launch `index` is the same in both, to the last argument.
    fn is_same(&self, other: &LaunchList, index: usize) -> bool {
        let (a, b) = (&self.list[index], &other.list[index]);
        a.groups == b.groups && self.arguments[a.arguments.clone()] == other.arguments[b.arguments.clone()]
    }

    /// Lets `use_it` have the arguments of a launch as the driver takes them: where they lie, and how many bytes.
    fn with_extra<T>(&self, launch: &Launch, use_it: impl FnOnce(*mut Handle) -> T) -> T {
        /// `CU_LAUNCH_PARAM_…`
        const POINTER: Handle = 1 as Handle;
        const SIZE: Handle = 2 as Handle;
        const END: Handle = 0 as Handle;
        let arguments = &self.arguments[launch.arguments.clone()];
        let mut bytes = arguments.len();
        let mut extra: [Handle; 5] = [
            POINTER,
            arguments.as_ptr().cast_mut().cast::<c_void>(),
            SIZE,
            (&raw mut bytes).cast::<c_void>(),
            END,
        ];
        use_it(extra.as_mut_ptr())
    }

    /// Launches them one by one.
    pub(crate) fn start(&self, driver: &Driver, stream: Handle) -> Result<(), String> {
        for launch in &self.list {
            let Launch { function, threads, groups: [x, y, z], .. } = *launch;
            self.with_extra(launch, |extra| {
                // SAFETY: functions are the module's, and arguments are those of their signatures.
                unsafe {
                    call!(
                        driver,
                        cuLaunchKernel,
                        function,
                        x,
                        y,
                        z,
                        threads,
                        1,
                        1,
                        0,
                        stream,
                        null_mut(),
                        extra
                    )
                }
            })?;
        }
        Ok(())
    }

    /// What a node of a graph is told of launch `index`.
    fn with_node<T>(&self, index: usize, use_it: impl FnOnce(&NodeParameters) -> T) -> T {
        let launch = &self.list[index];
        self.with_extra(launch, |extra| {
            use_it(&NodeParameters {
                function: launch.function,
                groups: launch.groups,
                threads: [launch.threads, 1, 1],
                shared_bytes: 0,
                parameters: null_mut(),
                extra,
            })
        })
    }
}

/// A pass that the driver starts as a whole.
struct Graph {
    launches: LaunchList,
    graph: Handle,
    executable: Handle,
    nodes: Vec<Handle>,
}

impl Graph {
    /// The graph of `launches`.
    fn new(driver: &Driver, launches: &LaunchList, kernels_wait: bool) -> Result<Graph, String> {
        let mut graph = null_mut();
        // SAFETY: the driver writes a handle there.
        unsafe { call!(driver, cuGraphCreate, &mut graph, 0)? };
        let mut made = Graph { launches: launches.clone(), graph, executable: null_mut(), nodes: Vec::new() };
        match made.fill(driver, kernels_wait) {
            Ok(()) => Ok(made),
            Err(error) => {
                made.destroy(driver);
                Err(error)
            }
        }
    }

    fn fill(&mut self, driver: &Driver, kernels_wait: bool) -> Result<(), String> {
        let depends = driver.cuGraphAddDependencies_v2.filter(|_| kernels_wait);
        let Graph { launches, graph, executable, nodes } = self;
        // Where those since the last barrier begin, and those between it and the one before, for which they wait.
        let (mut group, mut before) = (0, 0..0);
        for (index, launch) in launches.list.iter().enumerate() {
            if index > 0 && launch.barriers > launches.list[index - 1].barriers {
                before = group..index;
                group = index;
            }
            let mut waits = &nodes[before.clone()];
            let early = depends.filter(|_| waits.len() == 1).map(|depends| (depends, waits[0]));
            if early.is_some() {
                waits = &[];
            }
            let mut node = null_mut();
            launches.with_node(index, |parameters| {
                // SAFETY: nodes are this graph's, and parameters those of the kernel.
                unsafe {
                    call!(
                        driver,
                        cuGraphAddKernelNode,
                        &mut node,
                        *graph,
                        waits.as_ptr(),
                        waits.len(),
                        parameters
                    )
                }
            })?;
            if let Some((depends, first)) = early {
                // SAFETY: both nodes are this graph's, and kernels.
                let code = unsafe { depends(*graph, &first, &node, &Edge::BEGUN_EARLY, 1) };
                driver.check("cuGraphAddDependencies_v2", code)?;
            }
            nodes.push(node);
        }
        // SAFETY: the graph is whole.
        unsafe { call!(driver, cuGraphInstantiateWithFlags, executable, *graph, 0) }
    }

    /// Makes it one of `launches`, which are like its own.
    fn set(&mut self, driver: &Driver, launches: &LaunchList) -> Result<(), String> {
        for index in 0..launches.list.len() {
            if launches.is_same(&self.launches, index) {
                continue;
            }
            let (executable, node) = (self.executable, self.nodes[index]);
            launches.with_node(index, |parameters| {
                // SAFETY: the node is the graph's, and no pass runs.
                unsafe { call!(driver, cuGraphExecKernelNodeSetParams, executable, node, parameters) }
            })?;
        }
        self.launches.clone_from(launches);
        Ok(())
    }

    fn destroy(&self, driver: &Driver) {
        // SAFETY: nobody uses them any more. An error would change nothing.
        unsafe {
            if !self.executable.is_null() {
                let _ = (driver.cuGraphExecDestroy)(self.executable);
            }
            let _ = (driver.cuGraphDestroy)(self.graph);
        }
    }
}

/// How passes are started: the last one, and the graph that one before it has become.
#[derive(Default)]
pub(crate) struct Starter {
    last: LaunchList,
    graph: Option<Graph>,
    /// Whether kernels wait themselves for what was before them.
    pub(crate) kernels_wait: bool,
}

impl Starter {
    /// Starts a pass on `stream`, and does not wait for its end.
    pub(crate) fn start(
        &mut self,
        driver: &Driver,
        stream: Handle,
        launches: &LaunchList,
    ) -> Result<(), String> {
        if launches.list.is_empty() {
            return Ok(());
        }
        if self.graph.as_ref().is_some_and(|graph| graph.launches.is_like(launches)) {
            // A graph of which only a part could be set is of no use.
            let graph = self.graph.take().map(|mut graph| match graph.set(driver, launches) {
                Ok(()) => Ok(graph),
                Err(error) => {
                    graph.destroy(driver);
                    Err(error)
                }
            });
            self.graph = graph.transpose()?;
        } else if launches.is_like(&self.last) {
            self.forget(driver);
            self.graph = Some(Graph::new(driver, launches, self.kernels_wait)?);
        } else {
            self.last.clone_from(launches);
            return launches.start(driver, stream);
        }
        let Some(graph) = &self.graph else { return Ok(()) };
        // SAFETY: the graph is of this device, and so is the stream.
        unsafe { call!(driver, cuGraphLaunch, graph.executable, stream) }
    }

    /// Gives back what the driver has of it.
    pub(crate) fn forget(&mut self, driver: &Driver) {
        if let Some(graph) = self.graph.take() {
            graph.destroy(driver);
        }
    }
}
