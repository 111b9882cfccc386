// js-libp2p with AutoNAT v2, both sides, driven by the lines that lines.py describes:
//
//   node autonat.mjs /ip4/192.0.2.1/tcp/4001     listens there

import { noise } from '@chainsafe/libp2p-noise'
import { yamux } from '@chainsafe/libp2p-yamux'
import { autoNATv2 } from '@libp2p/autonat-v2'
import { identify } from '@libp2p/identify'
import { tcp } from '@libp2p/tcp'
import { multiaddr } from '@multiformats/multiaddr'
import { createLibp2p } from 'libp2p'
import { obey } from './lines.mjs'

const CALL_MS = 15_000

const node = await createLibp2p({
  addresses: { listen: [process.argv[2]] },
  transports: [tcp()],
  connectionEncrypters: [noise()],
  streamMuxers: [yamux()],
  services: { identify: identify(), autonat: autoNATv2() }
})

const addresses = () => node.getMultiaddrs().map(each => each.toString().split('/p2p/')[0])

const commands = {
  async connect ({ peer, addresses }) {
    const to = addresses.map(address => multiaddr(`${address}/p2p/${peer}`))
    await node.dial(to, { signal: AbortSignal.timeout(CALL_MS) })
  },

  // Those that it tells others of: public ones only once a peer has dialled them.
  async announced () {
    return addresses()
  }
}

await obey(node, { peer: node.peerId.toString(), addresses: [process.argv[2]] }, commands)
