//! Launch lists and CUDA graphs: a pass as a list of kernel launches, which becomes a graph when it repeats.
//!
//! The first time, a pass is launched kernel by kernel. If the next pass has the same kernels in the same
//! order, it is captured as a graph. Its nodes depend only on the nodes before the last barrier. Later passes
//! of that shape launch the graph, after updating nodes whose grid or scalars changed. A token's id and
//! position are in memory and not in launch parameters.
//!
//! With programmatic dependent launch, a node with a single dependency starts when all threadgroups of that
//! kernel have started. Its launch latency then overlaps with that kernel. This needs kernels that wait for
//! their predecessor themselves, and driver support.

use crate::gpu::cuda::driver::{Address, Driver, Edge, Handle, NodeParameters, call};
use std::ffi::c_void;
use std::ops::Range;
use std::ptr::null_mut;

/// One kernel launch.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Launch {
    function: Handle,
    threads: u32,
    groups: [u32; 3],
    /// Byte range of its arguments, in the kernel's parameter layout.
    arguments: Range<usize>,
    /// Number of barriers before it.
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
    /// Removes all launches and keeps the memory.
    pub(crate) fn clear(&mut self) {
        self.list.clear();
        self.arguments.clear();
        self.barriers = 0;
    }

    /// Appends a launch. Its arguments are the buffer addresses, followed by the scalars.
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
        // Aligns the next launch's addresses.
        self.arguments.resize(self.arguments.len().next_multiple_of(8), 0);
        self.list.push(Launch { function, threads, groups, arguments, barriers: self.barriers });
    }

    /// Orders later launches after earlier ones.
    pub(crate) fn barrier(&mut self) {
        self.barriers += 1;
    }

    /// Whether both lists launch the same kernels in the same order, so that a graph of one can be updated to
    /// the other.
    fn is_like(&self, other: &LaunchList) -> bool {
        let same = |(a, b): (&Launch, &Launch)| {
            a.function == b.function && a.barriers == b.barriers && a.arguments == b.arguments
        };
        self.list.len() == other.list.len() && self.list.iter().zip(&other.list).all(same)
    }

    /// Whether launch `index` is identical in both lists, including arguments.
    fn is_same(&self, other: &LaunchList, index: usize) -> bool {
        let (a, b) = (&self.list[index], &other.list[index]);
        a.groups == b.groups && self.arguments[a.arguments.clone()] == other.arguments[b.arguments.clone()]
    }

    /// Calls `use_it` with the arguments of a launch in the driver's `extra` format: pointer and size.
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

    /// Launches all kernels one by one.
    pub(crate) fn start(&self, driver: &Driver, stream: Handle) -> Result<(), String> {
        for launch in &self.list {
            let Launch { function, threads, groups: [x, y, z], .. } = *launch;
            self.with_extra(launch, |extra| {
                // SAFETY: functions are the module's, and arguments match their signatures.
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

    /// Calls `use_it` with the graph node parameters of launch `index`.
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

/// A pass as an instantiated CUDA graph.
struct Graph {
    launches: LaunchList,
    graph: Handle,
    executable: Handle,
    nodes: Vec<Handle>,
}

impl Graph {
    /// Builds the graph of `launches`.
    fn new(driver: &Driver, launches: &LaunchList, kernels_wait: bool) -> Result<Graph, String> {
        let mut graph = null_mut();
        // SAFETY: the driver writes a handle to a valid place.
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
        // First launch since the last barrier, and the launches between the last two barriers, which are the
        // dependencies.
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
                // SAFETY: nodes are this graph's, and parameters match the kernel.
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
                // SAFETY: both nodes are kernel nodes of this graph.
                let code = unsafe { depends(*graph, &first, &node, &Edge::PROGRAMMATIC, 1) };
                driver.check("cuGraphAddDependencies_v2", code)?;
            }
            nodes.push(node);
        }
        // SAFETY: the graph is complete.
        unsafe { call!(driver, cuGraphInstantiateWithFlags, executable, *graph, 0) }
    }

    /// Updates the graph to `launches`, which have the same kernels.
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
        // SAFETY: nothing uses them any more; errors are ignored.
        unsafe {
            if !self.executable.is_null() {
                let _ = (driver.cuGraphExecDestroy)(self.executable);
            }
            let _ = (driver.cuGraphDestroy)(self.graph);
        }
    }
}

/// Starts passes: keeps the last launch list, and the graph of a repeated one.
#[derive(Default)]
pub(crate) struct PassLauncher {
    last: LaunchList,
    graph: Option<Graph>,
    /// Whether kernels wait for their predecessor themselves (programmatic dependent launch).
    pub(crate) kernels_wait: bool,
}

impl PassLauncher {
    /// Starts a pass on `stream` without waiting for its end.
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
            // A partly updated graph is discarded.
            let graph = self.graph.take().map(|mut graph| match graph.set(driver, launches) {
                Ok(()) => Ok(graph),
                Err(error) => {
                    graph.destroy(driver);
                    Err(error)
                }
            });
            self.graph = graph.transpose()?;
        } else if launches.is_like(&self.last) {
            self.discard_graph(driver);
            self.graph = Some(Graph::new(driver, launches, self.kernels_wait)?);
        } else {
            self.last.clone_from(launches);
            return launches.start(driver, stream);
        }
        let Some(graph) = &self.graph else { return Ok(()) };
        // SAFETY: graph and stream are this device's.
        unsafe { call!(driver, cuGraphLaunch, graph.executable, stream) }
    }

    /// Destroys the graph.
    pub(crate) fn discard_graph(&mut self, driver: &Driver) {
        if let Some(graph) = self.graph.take() {
            graph.destroy(driver);
        }
    }
}
