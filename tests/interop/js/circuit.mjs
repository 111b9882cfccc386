// js-libp2p with circuit relay v2, driven by the lines that lines.py describes:
//
//   node circuit.mjs              dials circuits
//   node circuit.mjs relay        relays, with the limits that it has by default
//   node circuit.mjs ADDRESS      is reached through the relay at that address

import { noise } from '@chainsafe/libp2p-noise'
import { yamux } from '@chainsafe/libp2p-yamux'
import { circuitRelayServer, circuitRelayTransport } from '@libp2p/circuit-relay-v2'
import { identify } from '@libp2p/identify'
import { ping } from '@libp2p/ping'
import { tcp } from '@libp2p/tcp'
import { multiaddr } from '@multiformats/multiaddr'
import { createLibp2p } from 'libp2p'
import { obey } from './lines.mjs'

const CALL_MS = 15_000
const role = process.argv[2] ?? ''
const relays = role === 'relay'

const node = await createLibp2p({
  addresses: { listen: role.startsWith('/') ? [`${role}/p2p-circuit`] : ['/ip4/127.0.0.1/tcp/0'] },
  transports: [tcp(), circuitRelayTransport()],
  connectionEncrypters: [noise()],
  streamMuxers: [yamux()],
  // It dials no private addresses otherwise, and with them not the loopback interface.
  connectionGater: { denyDialMultiaddr: () => false },
  services: { identify: identify(), ping: ping(), ...(relays ? { relay: circuitRelayServer() } : {}) }
})

const signal = () => AbortSignal.timeout(CALL_MS)
const contact = () => ({
  peer: node.peerId.toString(),
  addresses: node.getMultiaddrs().map(address => address.toString().split(`/p2p/${node.peerId}`)[0])
})

const commands = {
  // The round trip to a peer in ms, and how it is connected to.
  async ping ({ peer, addresses }) {
    const to = addresses.map(address => multiaddr(`${address}/p2p/${peer}`))
    const connection = await node.dial(to, { signal: signal() })
    const took = await node.services.ping.ping(connection.remotePeer, { signal: signal() })
    return { took, limited: connection.limits != null, address: connection.remoteAddr.toString() }
  },

  async where () {
    return contact()
  }
}

await obey(node, contact(), commands)
