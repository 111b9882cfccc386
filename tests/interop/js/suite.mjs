// The public suite `@libp2p/interop`, with a node of ours in the place of one of its two kinds.
//
//     mocha suite.mjs
//
// OURS: `js` or `go`, the kind whose place ours takes; the other is js-libp2p, or go-libp2p's p2pd.
// PYTHON and ROOT: the interpreter and the folder of ours; P2PD: that daemon.

import { spawn } from 'node:child_process'
import { createServer } from 'node:net'
import { createInterface } from 'node:readline'
import { noise } from '@chainsafe/libp2p-noise'
import { yamux } from '@chainsafe/libp2p-yamux'
import { createClient } from '@libp2p/daemon-client'
import { Request } from '@libp2p/daemon-protocol'
import { createServer as createDaemon } from '@libp2p/daemon-server'
import { identify } from '@libp2p/identify'
import { connectInteropTests, dhtInteropTests, streamInteropTests } from '@libp2p/interop'
import { kadDHT, passthroughMapper } from '@libp2p/kad-dht'
import { ping } from '@libp2p/ping'
import { tcp } from '@libp2p/tcp'
import { pbStream } from '@libp2p/utils'
import { multiaddr } from '@multiformats/multiaddr'
import { createLibp2p } from 'libp2p'

const { OURS, PYTHON, ROOT, P2PD } = process.env
const LOOPBACK = '/ip4/127.0.0.1/tcp/0'

class Ours {
  start () {
    this.process = spawn(PYTHON, ['-m', 'tests.interop.daemon_node'], { cwd: ROOT, stdio: ['pipe', 'pipe', 'ignore'] })
    this.lines = createInterface({ input: this.process.stdout })[Symbol.asyncIterator]()
    this.turn = this.lines.next()
  }

  // One command at a time.
  do (what) {
    this.turn = this.turn.then(async () => {
      this.process.stdin.write(`${JSON.stringify(what)}\n`)
      const { value } = await this.lines.next()
      const said = JSON.parse(value)
      if (said.failed != null) throw new Error(said.failed)
      return said.done
    })
    return this.turn
  }

  async spawn (options) {
    const { control, number } = await this.do({ do: 'spawn', listens: options.noListen !== true })
    return {
      client: createClient(multiaddr(`/ip4/127.0.0.1/tcp/${control}`)),
      stop: () => this.do({ do: 'stop', number })
    }
  }

  stop () {
    this.process.stdin.end()
  }
}

// p2pd is that of hivemind, where the request for a stream handler has one field more, which must
// be there.
const field = (number, bytes) => Buffer.concat([Uint8Array.of(number << 3 | 2, bytes.length), bytes])
const unbalanced = {
  encode ({ type, streamHandler: { addr, proto } }) {
    const protocols = proto.map(each => field(2, Buffer.from(each)))
    const handler = Buffer.concat([field(1, addr), ...protocols, Uint8Array.of(3 << 3, 0)])
    return Buffer.concat([Request.encode({ type }), field(4, handler)])
  }
}

function clientOfGo (control) {
  const client = createClient(control)
  client.send = async request => {
    const stream = pbStream(await client.connectDaemon())
    await stream.write(request, request.streamHandler == null ? Request : unbalanced)
    return stream
  }
  return client
}

async function freePort () {
  const server = createServer()
  await new Promise(resolve => server.listen(0, '127.0.0.1', resolve))
  const { port } = server.address()
  await new Promise(resolve => server.close(resolve))
  return port
}

async function go (options) {
  const control = `/ip4/127.0.0.1/tcp/${await freePort()}`
  const flags = [`-listen=${control}`, '-q', '-relay=0', '-relayService=0', '-relayDiscovery=0']
  if (options.noListen === true) flags.push('-noListenAddrs')
  else flags.push(`-hostAddrs=${LOOPBACK}`)
  if (options.dht === true) flags.push('-dhtServer')
  const daemon = spawn(P2PD, flags, { stdio: 'ignore' })
  const client = clientOfGo(multiaddr(control))
  for (let tries = 0; ; tries++) {
    try {
      await client.identify()
      break
    } catch (error) {
      if (tries === 200) throw error
      await new Promise(resolve => setTimeout(resolve, 50))
    }
  }
  return {
    client,
    stop: async () => { daemon.kill() }
  }
}

async function js (options) {
  const node = await createLibp2p({
    addresses: { listen: options.noListen === true ? [] : [LOOPBACK] },
    transports: [tcp()],
    connectionEncrypters: [noise()],
    streamMuxers: [yamux()],
    services: {
      identify: identify(),
      ping: ping(),
      // As in node.mjs.
      ...(options.dht === true && {
        dht: kadDHT({
          protocol: '/ipfs/kad/1.0.0',
          clientMode: false,
          peerInfoMapper: passthroughMapper,
          allowQueryWithZeroPeers: true,
          initialQuerySelfInterval: 50
        })
      })
    }
  })
  const daemon = createDaemon(multiaddr(LOOPBACK), node)
  await daemon.start()
  return {
    client: createClient(daemon.getMultiaddr()),
    stop: async () => {
      await daemon.stop()
      await node.stop()
    }
  }
}

const ours = new Ours()
const kinds = { js, go, [OURS]: options => ours.spawn(options) }

before(() => ours.start())
after(() => ours.stop())

const factory = { spawn: options => kinds[options.type](options) }
connectInteropTests(factory)
await dhtInteropTests(factory)
await streamInteropTests(factory)
